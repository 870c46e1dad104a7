"""Weights of the policy gradient, compared with their definitions token by token."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    asymmetric_weight,
    binary_kl,
    binary_tv,
    clipped_weight,
    divergence_masked_weight,
    gamma_weight,
    ppo_clip,
    sequence_log_ratio,
    tapered_weight,
)
from tests.algos.helpers import f64, gradient_of

GAMMA = dict(power_positive=2.0, decay_positive=3.0, power_negative=3.0, decay_negative=2.0)
BOUNDS = dict(divergence_low=0.1, divergence_high=0.2, ratio_cap=2.0)


def example(rows: int = 5, time: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two policies' log-probabilities, advantages, and a mask of counted tokens."""
    draw = torch.Generator().manual_seed(0)
    logp, old_logp = (-3 * torch.rand(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    advantage = torch.randn(rows, time, generator=draw, dtype=torch.float64)
    return logp, old_logp, advantage, torch.rand(rows, time, generator=draw) < 0.7


@pytest.mark.parametrize("low", [0.5, 1.0])
def test_clipped_weight_is_the_clipped_ratio(low):
    logp, old_logp, _, _ = example()
    expected = [
        min(max(math.exp(x - y), 1 - low), 3.0) for x, y in zip(logp.flatten(), old_logp.flatten(), strict=True)
    ]
    actual = clipped_weight(logp, old_logp, clip_low=low, clip_high=2.0)
    torch.testing.assert_close(actual.flatten(), f64(expected)[0])


def test_asymmetric_weight_without_cap_has_the_ppo_gradient_if_advantages_are_negative():
    logp, old_logp, advantage, _ = example()
    advantage, clip = -advantage.abs(), dict(clip_low=0.2, clip_high=0.3)
    weight = asymmetric_weight(logp, old_logp, advantage, **clip, weight_cap=math.inf)
    torch.testing.assert_close(
        -weight * advantage, gradient_of(lambda x: ppo_clip(x, old_logp, advantage, **clip), logp)
    )


@pytest.mark.parametrize("divergence", [binary_tv, binary_kl])
def test_divergence_masked_weight_equals_the_definition(divergence):
    logp, old_logp, advantage, _ = example()
    actual = divergence_masked_weight(logp, old_logp, advantage, divergence=divergence, **BOUNDS)
    dropped = 0
    for position, distance in zip(
        torch.cartesian_prod(torch.arange(5), torch.arange(8)), divergence(logp, old_logp).flatten(), strict=True
    ):
        a, p, q = (float(x[tuple(position)]) for x in (advantage, logp.exp(), old_logp.exp()))
        is_dropped = (a > 0 and p > q and distance > 0.2) or (a < 0 and p < q and distance > 0.1)
        dropped += is_dropped
        torch.testing.assert_close(float(actual[tuple(position)]), 0.0 if is_dropped else min(p / q, 2.0))
    assert 0 < dropped < 40


def test_gamma_weight_equals_the_definition():
    logp, old_logp, advantage, mask = example()
    logp = old_logp + 0.1 * (logp - old_logp)
    actual = gamma_weight(logp, old_logp, advantage, mask, **GAMMA)
    for row in range(5):
        log_w = float((logp - old_logp)[row][mask[row]].sum())
        for a, weight in zip(advantage[row], actual[row], strict=True):
            power, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
            torch.testing.assert_close(float(weight), math.exp(decay + power * log_w - decay * math.exp(log_w)))


def test_gamma_weight_has_its_maximum_at_power_over_decay():
    log_w = torch.linspace(-3, 3, 6001, dtype=torch.float64)[:, None]
    weight = gamma_weight(log_w, torch.zeros_like(log_w), torch.ones_like(log_w), log_w < 9, **GAMMA)
    assert float(log_w[weight.argmax()].exp()) == pytest.approx(2 / 3, abs=1e-3)
    assert float(weight[3000]) == 1.0


def test_all_weights_are_one_if_the_policy_has_not_changed():
    logp, _, advantage, mask = example()
    assert not sequence_log_ratio(logp, logp, mask).any()
    clip = dict(clip_low=0.2, clip_high=0.3)
    for weight in (
        clipped_weight(logp, logp, **clip),
        asymmetric_weight(logp, logp, advantage, **clip, weight_cap=3.0),
        divergence_masked_weight(logp, logp, advantage, divergence=binary_tv, **BOUNDS),
        divergence_masked_weight(logp, logp, advantage, divergence=binary_kl, **BOUNDS),
        gamma_weight(logp, logp, advantage, mask, **GAMMA),
        tapered_weight(logp, logp, advantage, mask),
    ):
        assert (weight == 1).all()


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_weights_are_finite_for_large_log_ratios(distance):
    logp, zero, a = torch.full((1, 2), distance), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    for weight in (
        asymmetric_weight(logp, zero, a, clip_low=0.2, clip_high=0.3, weight_cap=3.0),
        divergence_masked_weight(logp, zero, a, divergence=binary_tv, **BOUNDS),
        divergence_masked_weight(logp, zero, a, divergence=binary_kl, **BOUNDS),
        gamma_weight(logp, zero, a, a < 9, **GAMMA),
        tapered_weight(logp, zero, a, a < 9),
    ):
        assert weight.isfinite().all()
