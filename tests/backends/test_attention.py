"""Attention with a mask: compared with its definition, and used for the models that it is made for."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from purerl.backends.hf.decoder.loading import load_model
from purerl.backends.hf.model.past_cache import cache_argument
from purerl.backends.hf.sampling.attention import _with_stored_columns, attend, decode_faster
from purerl.settings import Model
from tests.backends.tiny import write_model

ROWS, COLUMNS = 3, 7


def reference(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scale: float) -> Tensor:
    """Row by row and head by head."""
    output = torch.empty(*query.shape[:3], value.shape[-1], dtype=torch.float64)
    groups = query.shape[1] // key.shape[1]
    for row, head, time in product(*map(range, query.shape[:3])):
        mask = attention_mask[row, 0, time]
        keys, values = (x[row, head // groups][mask].double() for x in (key, value))
        output[row, head, time] = (scale * keys @ query[row, head, time].double()).softmax(0) @ values
    return output


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("width", [8, 32, 48])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
@pytest.mark.parametrize("is_masked", [False, True])
def test_attention_of_one_token_equals_its_definition(
    groups: int, width: int, dtype: torch.dtype, tolerance: float, *, is_masked: bool
) -> None:
    rng = torch.Generator().manual_seed(width)
    query = torch.randn(ROWS, 2 * groups, 1, width, generator=rng).to(dtype)
    key, value = torch.randn(2, ROWS, 2, 2 * COLUMNS, width, generator=rng).to(dtype)[..., :COLUMNS, :]
    attention_mask = torch.arange(COLUMNS) >= torch.tensor([0, 2, COLUMNS - 1])[:, None] * is_masked
    attention_mask = attention_mask[:, None, None]
    expected = reference(query, key, value, attention_mask, 0.3)
    output = attend(query, key, value, attention_mask.to(dtype).log() if is_masked else None, 0.3)
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("first", [0, 2, COLUMNS])
def test_stored_columns_that_are_not_in_use_have_no_effect(groups: int, first: int) -> None:
    """In a table, keys and values are columns of larger tensors. Values are finite there, keys may be anything."""
    rng = torch.Generator().manual_seed(first)
    query = torch.randn(ROWS, 2 * groups, 1, 8, generator=rng).double()
    key, value = torch.randn(2, ROWS + 1, 2, 2 * COLUMNS, 8, generator=rng).double()
    used, mask = slice(first, first + COLUMNS), torch.ones(ROWS, 1, 1, COLUMNS, dtype=torch.bool)
    unused = torch.arange(2 * COLUMNS).sub(first).div(COLUMNS, rounding_mode="floor") != 0
    key[:, :, unused], value[:, :, unused] = torch.nan, 1e6
    key, value = key[:ROWS, :, used], value[:ROWS, :, used]
    torch.testing.assert_close(attend(query, key, value, None, 0.3), reference(query, key, value, mask, 0.3))
    assert _with_stored_columns(key)[0].shape[2] == 2 * COLUMNS  # they are read


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 1, 0, 3), (0, 1, 3, 2)])
def test_keys_and_values_may_have_any_strides(order: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    query, mask = torch.randn(4, 4, 1, 4, generator=rng).double(), torch.ones(4, 1, 1, 4, dtype=torch.bool)
    key, value = torch.randn(2, 4, 4, 4, 4, generator=rng).double()
    key, value = key.permute(order), value.permute(order)
    torch.testing.assert_close(attend(query, key, value, None, 0.3), reference(query, key, value, mask, 0.3))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_attention_of_several_tokens_equals_its_definition(groups: int, dtype: torch.dtype, tolerance: float) -> None:
    rng = torch.Generator().manual_seed(groups)
    query = torch.randn(ROWS, 2 * groups, 4, 8, generator=rng).to(dtype)
    key, value = torch.randn(2, ROWS, 2, COLUMNS, 8, generator=rng).to(dtype)
    column, first = torch.arange(COLUMNS), torch.tensor([0, 2, 3])[:, None, None]
    mask = ((column >= first) & (column <= torch.arange(4)[:, None] + COLUMNS - 4))[:, None]
    expected = reference(query, key, value, mask, 0.3)
    torch.testing.assert_close(attend(query, key, value, mask, 0.3).double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("attention", "used"), [("sdpa", "purerl_decoding"), ("eager", "eager")])
def test_only_models_with_sdpa_attention_are_changed(tmp_path: Path, attention: str, used: str) -> None:
    model = load_model(Model(write_model(tmp_path), attention=attention))
    plain = load_model(Model(write_model(tmp_path), attention="eager"))
    decode_faster(model)
    assert model.config._attn_implementation == used
    tokens = torch.tensor([[2, 5, 3, 7], [4, 4, 6, 2]])
    cache = model(tokens[:, :3], use_cache=True).past_key_values
    logits = model(tokens[:, 3:], **cache_argument(model, cache)).logits[:, 0]
    torch.testing.assert_close(logits, plain(tokens).logits[:, 3])
