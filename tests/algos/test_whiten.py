"""Whitening, and the selection of tokens by covariance, over all counted tokens of a batch."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import high_covariance_tokens, whiten


def example(rows: int = 6, time: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    return x, y, torch.rand(rows, time, generator=draw) < 0.7


def test_whiten_uses_the_statistics_of_counted_tokens():
    x, _, mask = example()
    x[~mask] = torch.nan
    actual = whiten(x, mask)
    assert not actual[~mask].any()
    torch.testing.assert_close(actual[mask], (x[mask] - x[mask].mean()) / x[mask].std())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [0, 1, 3, 10])
def test_whiten_of_equal_values_is_exactly_zero(dtype, tokens):
    mask = torch.arange(12).reshape(3, 4) < tokens
    assert not whiten(torch.full((3, 4), 0.1, dtype=dtype), mask).any()


def test_whiten_of_an_empty_batch_is_empty():
    assert whiten(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)).shape == (0, 3)


@pytest.mark.parametrize("top_fraction", [1e-6, 0.1, 0.5, 1.0])
def test_high_covariance_tokens_have_the_largest_covariance(top_fraction):
    logp, advantage, mask = example()
    covariance = (logp - logp[mask].mean()) * (advantage - advantage[mask].mean())
    number = max(1, math.floor(top_fraction * int(mask.sum())))
    selected = high_covariance_tokens(logp, advantage, mask, top_fraction=top_fraction)
    assert torch.equal(selected, mask & (covariance >= covariance[mask].topk(number).values.min()) & (covariance > 0))
    assert int(selected.sum()) == min(number, int((covariance > 0)[mask].sum()))


def test_no_token_is_selected_if_advantages_are_equal():
    selected = high_covariance_tokens(torch.rand(2, 2), torch.full((2, 2), 0.1), torch.ones(2, 2) > 0, top_fraction=0.5)
    assert not selected.any()


def test_no_token_is_selected_without_counted_tokens():
    assert not high_covariance_tokens(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2) < 0, top_fraction=0.5).any()
