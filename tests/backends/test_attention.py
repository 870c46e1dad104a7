"""Attention of one token against its definition, and which models are told to use it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from purerl.backends.hf.attention import attend, decode_faster
from purerl.backends.hf.model import load_model
from purerl.protocols import Model
from tests.backends.tiny import write_model

ROWS, COLUMNS = 3, 7


def defined(query: Tensor, key: Tensor, value: Tensor, there: Tensor, scale: float) -> Tensor:
    """Row by row and head by head."""
    answer = torch.empty(*query.shape[:3], value.shape[-1], dtype=torch.float64)
    groups = query.shape[1] // key.shape[1]
    for row in range(query.shape[0]):
        seen = there[row, 0, 0]
        for head in range(query.shape[1]):
            keys, values = (x[row, head // groups][seen].double() for x in (key, value))
            answer[row, head, 0] = (scale * keys @ query[row, head, 0].double()).softmax(0) @ values
    return answer


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("width", [8, 32, 48])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_one_token_sees_what_the_definition_says(
    groups: int, width: int, dtype: torch.dtype, tolerance: float, *, masked: bool
) -> None:
    draw = torch.Generator().manual_seed(width)
    query = torch.randn(ROWS, 2 * groups, 1, width, generator=draw).to(dtype)
    key, value = torch.randn(2, ROWS, 2, 2 * COLUMNS, width, generator=draw).to(dtype)[..., :COLUMNS, :]
    there = torch.arange(COLUMNS) >= torch.tensor([0, 2, COLUMNS - 1])[:, None] * masked
    there = there[:, None, None]
    expected = defined(query, key, value, there, 0.3)
    torch.testing.assert_close(
        attend(query, key, value, there if masked else None, 0.3).double(), expected, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(("asked", "used"), [("sdpa", "purerl_decoding"), ("eager", "eager")])
def test_a_model_that_would_use_the_kernel_decodes_by_it(tmp_path: Path, asked: str, used: str) -> None:
    model = load_model(Model(write_model(tmp_path), attention=asked))
    plain = load_model(Model(write_model(tmp_path), attention="eager"))
    decode_faster(model)
    assert model.config._attn_implementation == used
    tokens = torch.tensor([[2, 5, 3, 7], [4, 4, 6, 2]])
    seen = model(tokens[:, :3], use_cache=True).past_key_values
    one = model(tokens[:, 3:], past_key_values=seen).logits[:, 0]
    torch.testing.assert_close(one, plain(tokens).logits[:, 3])
