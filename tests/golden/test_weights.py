"""Weights of the policy gradient, and of rows that another policy sampled: by hand."""

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
    effective_sample_size,
    gamma_weight,
    sequence_importance_ratio,
    tapered_weight,
)
from purerl.algos.flowrl import clipped_row_weight
from purerl.algos.parts.corrections import banded_ratio, off_policy_tokens, truncated_ratio
from purerl.algos.parts.rows import row_max, row_sum
from tests.golden.hand import close, f64, logs, where

ZERO = torch.zeros(1, 3, dtype=torch.float64)


def test_ratios_are_clipped_truncated_or_banded():
    close(clipped_weight(logs([0.1, 2, 9]), ZERO, clip_low=0.5, clip_high=4.0), [0.5, 2, 5])
    close(truncated_ratio(f64(0.1, 9), ratio_cap=2.0), 0.1, 2)
    close(banded_ratio(f64(0.1, 2, 9), min_ratio=0.5, max_ratio=5.0), 0, 2, 0)


def test_the_ratio_of_a_row_is_the_product_of_its_tokens():
    close(sequence_importance_ratio(logs([2, 3, 99]), ZERO, where("xx.")), 6)
    rows, mask = logs([0.5, 1], [1.1, 1], [2, 1]), where("xx", "xx", "xx")
    close(clipped_row_weight(rows, torch.zeros_like(rows), mask, clip_low=0.2, clip_high=0.3), 0.8, 1.1, 1.3)


def test_sums_and_largest_of_rows():
    x, mask = f64([-3, -1, 7], [4, 5, 6]), where("xx.", "...")
    close(row_sum(x, mask), -4, 0)
    close(row_max(x, mask), -1, 0)


@pytest.mark.parametrize(
    ("now", "then", "advantage", "weight"),
    [
        (0.5, 0.25, 1, 0),  # the gap of 1/4 is above .2, and the token moves on
        (0.5, 0.25, -1, 2),  # back it may
        (0.25, 0.5, -1, 0),
        (0.3, 0.15, 1, 2),  # a gap of .15 is in bounds
        (0.03, 0.01, 1, 2.5),  # a ratio of 3 is capped
    ],
)
def test_the_trusted_weight_by_cases(now, then, advantage, weight):
    bounds = dict(divergence=binary_tv, divergence_low=0.2, divergence_high=0.2, ratio_cap=2.5)
    close(divergence_masked_weight(logs([now]), logs([then]), f64([advantage]), **bounds), [weight])


def test_the_gamma_weight_of_a_row_that_is_twice_as_likely():
    # W^k exp(decay (1 - W)): 2^2 exp(-3) where A >= 0, 2^3 exp(-2) where A < 0
    found = gamma_weight(
        logs([2, 1, 99]), ZERO, f64([1, -1, 0]), where("xx."),
        power_positive=2.0, decay_positive=3.0, power_negative=3.0, decay_negative=2.0,
    )  # fmt: skip
    close(found, [4 * math.exp(-3), 8 * math.exp(-2), 4 * math.exp(-3)])


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.25, 2.0, 0.8),  # already likelier: less
        (0.5, 2.0, 2.0),  # left behind: more
        (0.1, 2.0, 3.0),  # but not more than the cap
        (1.5, 2.0, 0.0),  # clipped
        (0.9, -2.0, 0.9),  # bad tokens as in PPO
        (0.5, -2.0, 0.0),
        (2.0, -2.0, 2.0),
        (9.0, -2.0, 3.0),
        (2.0, 0.0, 2.0),  # neither
    ],
)
def test_the_flipped_weight_by_cases(ratio, advantage, weight):
    logp, a, clip = f64([math.log(ratio)]), f64([advantage]), dict(clip_low=0.2, clip_high=0.3)
    found = asymmetric_weight(logp, torch.zeros_like(logp), a, **clip, weight_cap=3.0)
    torch.testing.assert_close(found, f64([weight]))


def test_distances_of_one_token_by_hand():
    p, q = f64([0.5, 0.2]), f64([0.25, 0.2])
    torch.testing.assert_close(binary_tv(p.log(), q.log()), f64([0.25, 0.0]))
    kl = 0.25 * math.log(0.5) + 0.75 * math.log(0.75 / 0.5)
    torch.testing.assert_close(binary_kl(p.log(), q.log()), f64([kl, 0.0]), atol=1e-7, rtol=0)


def test_the_tapered_weight_by_hand():
    logp, mask = f64([-1.0, -1.0, 9.0], [2.0, 2.0, 2.0]), torch.tensor([[True, True, False], [True, True, True]])
    advantage = f64([1.0, -1.0, 0.0], [-1.0, 1.0, -1.0])
    found = tapered_weight(logp, torch.zeros_like(logp), advantage, mask)
    torch.testing.assert_close(found, f64([1.0, math.exp(-2), 1.0], [1.0, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("weight", "expected"), [([1, 1, 1, 1], 1.0), ([4, 0, 0, 0], 0.25), ([0, 0, 0, 0], 0.0), ([1, 1, 0, 0], 0.5)]
)
def test_effective_sample_size(weight, expected):
    w = torch.tensor([weight], dtype=torch.float64)
    assert float(effective_sample_size(w, torch.ones(1, 4) > 0)) == expected
    assert float(effective_sample_size(w, torch.zeros(1, 4) > 0)) == 0.0


def test_stale_by_cases():
    logp = torch.tensor([[-2.0, -4.0], [-2.0, -4.0], [-1.0, -1.5]], requires_grad=True)
    advantage = torch.tensor([[-1.0, -1.0], [1.0, 0.0], [-1.0, -1.0]])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    found = off_policy_tokens(logp, torch.full((3, 2), -1.0), advantage, mask, delta=1.0)
    assert found.int().tolist() == [[1, 1], [0, 0], [0, 0]]
