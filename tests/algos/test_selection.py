"""Selection of tokens, compared with its definition over all counted tokens of a batch."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import low_entropy_tokens, sampled_covariance_tokens, second_moment_outliers


def example(rows: int = 6, time: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    noise = torch.rand(rows, time, generator=draw, dtype=torch.float64)
    return x, y, noise, torch.rand(rows, time, generator=draw) < 0.7


@pytest.mark.parametrize("fraction", [1e-6, 0.1, 1.0])
def test_sampled_covariance_tokens_have_the_largest_noise(fraction):
    logp, advantage, noise, mask = example()
    covariance = (logp - logp[mask].mean()) * (advantage - advantage[mask].mean())
    candidates = mask & (covariance > 0.1) & (covariance < 1.0)
    number = max(1, math.floor(fraction * int(mask.sum())))
    actual = sampled_covariance_tokens(logp, advantage, noise, mask, fraction=fraction, cov_low=0.1, cov_high=1.0)
    expected = sorted(noise[candidates].tolist(), reverse=True)[:number]
    assert sorted(noise[actual].tolist(), reverse=True) == expected
    assert not (actual & ~candidates).any()


def test_sampled_covariance_tokens_are_uniform_over_candidates():
    logp, advantage, _, mask = example()
    bounds = dict(fraction=1e-6, cov_low=0.1, cov_high=1.0)
    noise = torch.rand(2000, 6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = torch.func.vmap(lambda x: sampled_covariance_tokens(logp, advantage, x, mask, **bounds))(noise).sum(0)
    candidates = sampled_covariance_tokens(logp, advantage, noise[0], mask, fraction=1.0, cov_low=0.1, cov_high=1.0)
    assert int(draws.sum()) == 2000
    mean = 2000 / int(candidates.sum())
    assert ((draws[candidates] - mean).abs() < 5 * math.sqrt(mean)).all()


@pytest.mark.parametrize("top_fraction", [1e-6, 0.2, 1.0])
def test_low_entropy_tokens_are_all_but_the_top_fraction(top_fraction):
    entropy, _, _, mask = example()
    number = max(1, math.floor(top_fraction * int(mask.sum())))
    threshold = sorted(entropy[mask].tolist(), reverse=True)[number - 1]
    assert torch.equal(low_entropy_tokens(entropy, mask, top_fraction=top_fraction), mask & (entropy < threshold))


@pytest.mark.parametrize("moment_bound", [0.0, 0.01, 0.5, 1e6])
def test_second_moment_outliers_are_the_smallest_sufficient_set(moment_bound):
    log_ratio, advantage, _, mask = example()
    zero = torch.zeros_like(log_ratio)
    actual = second_moment_outliers(log_ratio, zero, advantage, mask, moment_bound=moment_bound)
    candidates = mask & (log_ratio * advantage > 0)
    squares = sorted(log_ratio[candidates].square().tolist(), reverse=True)
    number = 0
    while squares[number:] and sum(squares[number:]) / len(squares[number:]) > moment_bound:
        number += 1
    assert sorted(log_ratio[actual].square().tolist(), reverse=True) == squares[:number]
    assert not (actual & ~candidates).any()


def test_nothing_is_selected_without_counted_tokens():
    x, mask = torch.ones(2, 3), torch.zeros(2, 3) > 0
    assert not second_moment_outliers(x, -x, x, mask, moment_bound=0.04).any()
    assert not low_entropy_tokens(x, mask, top_fraction=0.2).any()
    assert not sampled_covariance_tokens(x, x, x, mask, fraction=0.5, cov_low=-1.0, cov_high=1.0).any()
    assert second_moment_outliers(x[:0], x[:0], x[:0], mask[:0], moment_bound=0.04).shape == (0, 3)
