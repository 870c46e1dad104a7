"""Weights of the policy gradient, and off-policy weights, with manually computed values."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    asymmetric_weight,
    binary_kl,
    binary_tv,
    clipped_weight,
    complement_ratio,
    complement_weight,
    divergence_banded_weight,
    divergence_masked_weight,
    double_sided_weight,
    effective_sample_size,
    gamma_weight,
    gradient_preserving_weight,
    sequence_importance_ratio,
    symmetric_binary_kl,
    tapered_weight,
    unbounded_positive_weight,
)
from purerl.algos.flowrl import clipped_row_weight
from purerl.algos.parts.corrections import banded_ratio, clamped_ratio, off_policy_tokens, truncated_ratio
from purerl.algos.parts.rows import row_max, row_sum
from tests.golden.helpers import assert_values, f64, logs, mask_of

ZERO = torch.zeros(1, 3, dtype=torch.float64)


def test_clipped_truncated_banded_and_clamped_ratios():
    assert_values(clipped_weight(logs([0.1, 2, 9]), ZERO, clip_low=0.5, clip_high=4.0), [0.5, 2, 5])
    assert_values(truncated_ratio(f64(0.1, 9), ratio_cap=2.0), 0.1, 2)
    assert_values(banded_ratio(f64(0.1, 2, 9), min_ratio=0.5, max_ratio=5.0), 0, 2, 0)
    assert_values(clamped_ratio(f64(0.1, 2, 9), min_ratio=0.5, max_ratio=5.0), 0.5, 2, 5)


def test_sequence_importance_ratio_is_the_product_of_token_ratios():
    assert_values(sequence_importance_ratio(logs([2, 3, 99]), ZERO, mask_of("xx.")), 6)
    rows, mask = logs([0.5, 1], [1.1, 1], [2, 1]), mask_of("xx", "xx", "xx")
    assert_values(clipped_row_weight(rows, torch.zeros_like(rows), mask, clip_low=0.2, clip_high=0.3), 0.8, 1.1, 1.3)


def test_row_sum_and_row_max():
    x, mask = f64([-3, -1, 7], [4, 5, 6]), mask_of("xx.", "...")
    assert_values(row_sum(x, mask), -4, 0)
    assert_values(row_max(x, mask), -1, 0)


@pytest.mark.parametrize(
    ("p", "q", "advantage", "weight"),
    [
        (0.5, 0.25, 1, 0),  # A > 0, r > 1, and D = 1/4 is above .2: dropped
        (0.5, 0.25, -1, 2),  # A < 0 and r > 1: not dropped
        (0.25, 0.5, -1, 0),  # A < 0 and r < 1: dropped
        (0.3, 0.15, 1, 2),  # D = .15 is below .2: not dropped
        (0.03, 0.01, 1, 2.5),  # the ratio of 3 is capped
    ],
)
def test_divergence_masked_weight(p, q, advantage, weight):
    bounds = dict(divergence=binary_tv, divergence_low=0.2, divergence_high=0.2, ratio_cap=2.5)
    assert_values(divergence_masked_weight(logs([p]), logs([q]), f64([advantage]), **bounds), [weight])


@pytest.mark.parametrize(
    ("p", "q", "weight"),
    [
        (0.5, 0.25, 0),  # r > 1, and D = 1/4 is above .2: dropped
        (0.25, 0.5, 0.5),  # r < 1, and D = 1/4 is below .3: not dropped
        (0.1, 0.5, 0),  # r < 1, and D = .4 is above .3: dropped
        (0.3, 0.15, 2),  # D = .15 is below .2: not dropped
        (0.03, 0.01, 2.5),  # the ratio of 3 is capped
    ],
)
def test_divergence_banded_weight(p, q, weight):
    bounds = dict(divergence=binary_tv, divergence_low=0.3, divergence_high=0.2, ratio_cap=2.5)
    assert_values(divergence_banded_weight(logs([p]), logs([q]), **bounds), [weight])


def test_gamma_weight_of_a_row_with_the_ratio_two():
    # W^power exp(decay (1 - W)) is 2^2 exp(-3) if A >= 0, and 2^3 exp(-2) if A < 0.
    actual = gamma_weight(
        logs([2, 1, 99]), ZERO, f64([1, -1, 0]), mask_of("xx."),
        power_positive=2.0, decay_positive=3.0, power_negative=3.0, decay_negative=2.0,
    )  # fmt: skip
    assert_values(actual, [4 * math.exp(-3), 8 * math.exp(-2), 4 * math.exp(-3)])


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.25, 2.0, 0.8),  # the inverse of the ratio
        (0.5, 2.0, 2.0),  # the inverse of the ratio
        (0.1, 2.0, 3.0),  # the inverse is capped
        (1.5, 2.0, 0.0),  # clipped
        (0.9, -2.0, 0.9),  # the ratio, as in PPO
        (0.5, -2.0, 0.0),  # clipped
        (2.0, -2.0, 2.0),
        (9.0, -2.0, 3.0),  # capped
        (2.0, 0.0, 2.0),
    ],
)
def test_asymmetric_weight(ratio, advantage, weight):
    logp, a, clip = f64([math.log(ratio)]), f64([advantage]), dict(clip_low=0.2, clip_high=0.3)
    actual = asymmetric_weight(logp, torch.zeros_like(logp), a, **clip, weight_cap=3.0)
    torch.testing.assert_close(actual, f64([weight]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (0.5, -2.0, 0.5 * 0.8),  # below the range
        (2.0, 2.0, 0.9 * 1.3),  # above it
        (0.5, 2.0, 0.5),  # the ratio, as in PPO
        (2.0, -2.0, 2.0),
        (1.0, -2.0, 1.0),
        (9.0, 0.0, 9.0),
    ],
)
def test_gradient_preserving_weight(ratio, advantage, weight):
    logp, a, clip = f64([math.log(ratio)]), f64([advantage]), dict(clip_low=0.2, clip_high=0.3)
    actual = gradient_preserving_weight(logp, torch.zeros_like(logp), a, **clip, low_coef=0.5, high_coef=0.9)
    torch.testing.assert_close(actual, f64([weight]))


def test_binary_divergences():
    p, q = f64([0.5, 0.2]), f64([0.25, 0.2])
    torch.testing.assert_close(binary_tv(p.log(), q.log()), f64([0.25, 0.0]))
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(0.75 / 0.5)
    torch.testing.assert_close(binary_kl(p.log(), q.log()), f64([kl, 0.0]), atol=1e-7, rtol=0)


def test_tapered_weight():
    logp, mask = f64([-1.0, -1.0, 9.0], [2.0, 2.0, 2.0]), torch.tensor([[True, True, False], [True, True, True]])
    advantage = f64([1.0, -1.0, 0.0], [-1.0, 1.0, -1.0])
    actual = tapered_weight(logp, torch.zeros_like(logp), advantage, mask)
    torch.testing.assert_close(actual, f64([1.0, math.exp(-2), 1.0], [1.0, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("weight", "expected"), [([1, 1, 1, 1], 1.0), ([4, 0, 0, 0], 0.25), ([0, 0, 0, 0], 0.0), ([1, 1, 0, 0], 0.5)]
)
def test_effective_sample_size(weight, expected):
    w = torch.tensor([weight], dtype=torch.float64)
    assert float(effective_sample_size(w, torch.ones(1, 4) > 0)) == expected
    assert float(effective_sample_size(w, torch.zeros(1, 4) > 0)) == 0.0


def test_off_policy_tokens():
    logp = torch.tensor([[-2.0, -4.0], [-2.0, -4.0], [-1.0, -1.5]], requires_grad=True)
    advantage = torch.tensor([[-1.0, -1.0], [1.0, 0.0], [-1.0, -1.0]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    actual = off_policy_tokens(logp, torch.full((3, 2), -1.0), advantage, mask, delta=1.0)
    assert actual.int().tolist() == [[1, 1], [0, 0], [0, 0]]


def test_double_sided_weight_has_a_band_for_either_sign_of_the_advantage():
    logp, zero = logs([0.79, 0.81, 1.29, 1.31]), torch.zeros(1, 4, dtype=torch.float64)
    assert_values(double_sided_weight(logp, zero, clip_low=0.2, clip_high=0.3), [0, 0.81, 1.29, 0])


def test_unbounded_positive_weight():
    """With A > 0 it is 1 for any ratio; with A <= 0 it is that of PPO with dual clip."""
    logp, zero = logs([0.1, 9, 0.7, 0.9, 2.9, 3.1]), torch.zeros(1, 6, dtype=torch.float64)
    advantage = f64([1, 1, -1, -1, -1, -1])
    weight = unbounded_positive_weight(logp, zero, advantage, clip_low=0.2, ratio_cap=3.0)
    assert_values(weight, [1, 1, 0, 0.9, 2.9, 0])


def test_symmetric_binary_kl_is_the_larger_direction():
    """For 1/2 and 1/4: 1/2 log 2 + 1/2 log 2/3, and 1/4 log 1/2 + 3/4 log 3/2."""
    forward, backward = math.log(2) / 2 + math.log(2 / 3) / 2, math.log(1 / 2) / 4 + 3 * math.log(3 / 2) / 4
    assert forward > backward > 0
    actual = symmetric_binary_kl(logs([0.5, 0.25, 0.3]), logs([0.25, 0.5, 0.3]))
    assert_values(actual, [forward, forward, 0], atol=1e-7)  # 1e-8 is added to probabilities


def test_complement_weight_is_the_ratio_of_the_probabilities_of_other_tokens():
    """(1.1 - mu) / (1.1 - pi): 0.6 / 0.2 = 3 above the bound, 0.6 / 0.55, and 0.6 / 0.9 = 2 / 3 below the bound."""
    logp, mu = logs([0.9, 0.55, 0.2]), logs([0.5, 0.5, 0.5])
    assert_values(complement_ratio(logp, mu, eps=0.1), [3, 12 / 11, 2 / 3])
    bounds = {"eps": 0.1, "clip_low": 0.2, "clip_high": 0.28, "weight_cap": 2.5}
    assert_values(complement_weight(logp, mu, f64([1, 1, 1]), **bounds), [0, 12 / 11, 2 / 3])
    assert_values(complement_weight(logp, mu, f64([-1, -1, -1]), **bounds), [2.5, 12 / 11, 0])
