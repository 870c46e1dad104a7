"""Truncated prompts against verl's `postprocess_data`."""

from __future__ import annotations

import pytest
import torch

from purerl.data.truncation import PromptLimit, truncate

verl = pytest.importorskip("verl.utils.torch_functional", reason="verl is not installed: nox -s oracle")


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("size", range(1, 9))
def test_truncated_prompts_are_those_of_verl(side: str, size: int) -> None:
    tokens = torch.arange(1, 9)[None]
    mask = torch.ones_like(tokens)
    expected, _ = verl.postprocess_data(tokens, mask, max_length=size, pad_token_id=0, truncation=side)
    assert truncate(tokens[0].tolist(), PromptLimit(size, side)) == expected[0].tolist()
