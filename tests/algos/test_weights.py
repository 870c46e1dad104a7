"""Weights of the policy gradient: by hand, and by their definition, one token after the other."""

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
from tests.algos.test_surrogates import f64, slope

GAMMA = dict(power_positive=2.0, decay_positive=3.0, power_negative=3.0, decay_negative=2.0)
TRUST = dict(divergence_low=0.1, divergence_high=0.2, ratio_cap=2.0)


def drawn(rows: int = 5, time: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities now and then, advantages, and what counts."""
    draw = torch.Generator().manual_seed(0)
    now, then = (-3 * torch.rand(rows, time, generator=draw, dtype=torch.float64) for _ in range(2))
    advantage = torch.randn(rows, time, generator=draw, dtype=torch.float64)
    return now, then, advantage, torch.rand(rows, time, generator=draw) < 0.7


@pytest.mark.parametrize("low", [0.5, 1.0])
def test_the_clipped_weight_is_the_clipped_ratio(low):
    now, then, _, _ = drawn()
    expected = [min(max(math.exp(x - y), 1 - low), 3.0) for x, y in zip(now.flatten(), then.flatten(), strict=True)]
    actual = clipped_weight(now, then, clip_low=low, clip_high=2.0)
    torch.testing.assert_close(actual.flatten(), f64(expected)[0])


def test_without_cap_the_flipped_gradient_is_ppos_where_bad():
    now, then, advantage, _ = drawn()
    advantage, clip = -advantage.abs(), dict(clip_low=0.2, clip_high=0.3)
    weight = asymmetric_weight(now, then, advantage, **clip, weight_cap=math.inf)
    torch.testing.assert_close(-weight * advantage, slope(lambda x: ppo_clip(x, then, advantage, **clip), now))


@pytest.mark.parametrize("divergence", [binary_tv, binary_kl])
def test_the_trusted_weight_by_its_definition(divergence):
    now, then, advantage, _ = drawn()
    actual = divergence_masked_weight(now, then, advantage, divergence=divergence, **TRUST)
    dropped = 0
    for place, distance in zip(
        torch.cartesian_prod(torch.arange(5), torch.arange(8)), divergence(now, then).flatten(), strict=True
    ):
        a, p, q = (float(x[tuple(place)]) for x in (advantage, now.exp(), then.exp()))
        far = (a > 0 and p > q and distance > 0.2) or (a < 0 and p < q and distance > 0.1)
        dropped += far
        torch.testing.assert_close(float(actual[tuple(place)]), 0.0 if far else min(p / q, 2.0))
    assert 0 < dropped < 40


def test_the_gamma_weight_by_its_definition():
    now, then, advantage, mask = drawn()
    now = then + 0.1 * (now - then)
    actual = gamma_weight(now, then, advantage, mask, **GAMMA)
    for row in range(5):
        log_w = float((now - then)[row][mask[row]].sum())
        for a, weight in zip(advantage[row], actual[row], strict=True):
            k, decay = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
            torch.testing.assert_close(float(weight), math.exp(decay + k * log_w - decay * math.exp(log_w)))


def test_the_gamma_weight_peaks_where_it_is_said_to():
    log_w = torch.linspace(-3, 3, 6001, dtype=torch.float64)[:, None]
    good = gamma_weight(log_w, torch.zeros_like(log_w), torch.ones_like(log_w), log_w < 9, **GAMMA)
    assert float(log_w[good.argmax()].exp()) == pytest.approx(2 / 3, abs=1e-3)
    assert float(good[3000]) == 1.0


def test_all_weights_are_1_where_nothing_has_moved():
    now, _, advantage, mask = drawn()
    assert not sequence_log_ratio(now, now, mask).any()
    clip = dict(clip_low=0.2, clip_high=0.3)
    for weight in (
        clipped_weight(now, now, **clip),
        asymmetric_weight(now, now, advantage, **clip, weight_cap=3.0),
        divergence_masked_weight(now, now, advantage, divergence=binary_tv, **TRUST),
        divergence_masked_weight(now, now, advantage, divergence=binary_kl, **TRUST),
        gamma_weight(now, now, advantage, mask, **GAMMA),
        tapered_weight(now, now, advantage, mask),
    ):
        assert (weight == 1).all()


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_no_distance_overflows_a_weight(distance):
    logp, zero, a = torch.full((1, 2), distance), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    for weight in (
        asymmetric_weight(logp, zero, a, clip_low=0.2, clip_high=0.3, weight_cap=3.0),
        divergence_masked_weight(logp, zero, a, divergence=binary_tv, **TRUST),
        divergence_masked_weight(logp, zero, a, divergence=binary_kl, **TRUST),
        gamma_weight(logp, zero, a, a < 9, **GAMMA),
        tapered_weight(logp, zero, a, a < 9),
    ):
        assert weight.isfinite().all()
