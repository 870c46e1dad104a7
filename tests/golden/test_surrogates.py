"""Losses at a token: value and gradient by cases, with ratios whose logarithms are given."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    clip_indicator,
    clip_surrogate,
    clipped_value_loss,
    dual_clip_surrogate,
    geometric_mean_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_log_ratio,
    sequence_ratio,
    soft_gate_surrogate,
    token_ratio,
)
from purerl.algos.kl_cov import distance_penalty
from purerl.algos.parts.values import squared_error
from purerl.algos.sft import negative_log_likelihood
from tests.golden.hand import close, f64, logs, slope, where

CLIP = dict(clip_low=0.2, clip_high=0.3)
MASKS = where("xx.", "...")


def test_without_a_clip():
    logp, old, a = logs([0.5, 0.25]), logs([0.25, 0.5]), f64([3, -1])
    close(token_ratio(logp, old), [2, 0.5])
    close(policy_gradient(logp, a), [3 * math.log(2), -math.log(4)])  # -A logp
    close(importance_surrogate(logp, old, a), [-6, 0.5])
    close(slope(lambda x: importance_surrogate(x, old, a), logp), [-6, 0.5])  # -A r again
    close(negative_log_likelihood(logp), [math.log(2), math.log(4)])
    close(distance_penalty(logp, old, where("x.")), [math.log(2), 0])


def test_the_squared_error():
    close(squared_error(f64([3, 1]), f64([1, 4])), [4, 9])


def test_beyond_the_cap_of_the_dual_clip_a_bad_token_is_left_alone():
    ratio, a = f64([2, 9, 9]), f64([-1, -1, 1])  # 2, then the cap of 3, then PPO's 1.3
    close(dual_clip_surrogate(ratio, a, **CLIP, ratio_cap=3.0), [2, 3, -1.3])
    close(slope(lambda r: dual_clip_surrogate(r, a, **CLIP, ratio_cap=3.0), ratio), [1, 0, 0])
    close(clip_surrogate(ratio, a, **CLIP), [2, 9, -1.3])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [  # gradient in logp: -A r where the token is not clipped
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 2.0, -2.5, -2.5),
        (1.5, 2.0, -2.6, 0.0),  # risen far enough
        (0.5, 2.0, -1.0, -1.0),  # fallen, though it was good: back up
        (1.0, -2.0, 2.0, 2.0),
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # fallen far enough
        (1.5, -2.0, 3.0, 3.0),  # risen, though it was bad: back down
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_clip_by_cases(ratio, advantage, loss, gradient):
    logp, old, a = f64([math.log(ratio) - 1.0]), f64([-1.0]), f64([advantage])
    torch.testing.assert_close(ppo_clip(logp, old, a, **CLIP), f64([loss]))
    torch.testing.assert_close(slope(lambda x: ppo_clip(x, old, a, **CLIP), logp), f64([gradient]), atol=1e-12, rtol=0)
    assert bool(clip_indicator(token_ratio(logp, old), a, **CLIP)) == (advantage != 0 and gradient == 0)


def test_the_sequence_ratio_is_a_geometric_mean():
    logp, mask = f64([0.4, -0.1, 9.0], [9.0, 9.0, 9.0]), torch.tensor([[True, True, False], [False] * 3])
    ratio = sequence_ratio(logp, torch.zeros_like(logp), mask)
    torch.testing.assert_close(ratio[0, :2], f64(math.exp(0.15), math.exp(0.15)))


def test_the_soft_gate_by_hand():
    logp, a = f64([math.log(1.5), math.log(0.5), math.log(1.5)]), f64([2.0, 2.0, -2.0])

    def function(x):
        return soft_gate_surrogate(x.exp(), a, gate_positive=1.0, gate_negative=3.0)

    up, down, bad = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-1.5))
    torch.testing.assert_close(function(logp), f64([-8 * up, -8 * down, 8 / 3 * bad]))
    # That of -A r, times 4 p (1 - p)
    gates = f64([4 * up * (1 - up), 4 * down * (1 - down), 4 * bad * (1 - bad)])
    torch.testing.assert_close(slope(function, logp), gates * slope(lambda x: -a * x.exp(), logp))


def test_the_row_ratio_counts_what_counts():
    logp, old, mask = f64([1.0, 2.0, 99.0], [5.0, 5.0, 5.0]), f64([0.5, 3.0, 0.0], [0.0, 0.0, 0.0]), MASKS
    assert sequence_log_ratio(logp, old, mask).tolist() == [-0.5, 0.0]


def test_the_geometric_ratio_by_hand():
    # Log-ratios 1.0, -1.0 and 0.1, and one that does not count; clipped by 0.4 on one side.
    logp, mask = f64([1.0, -1.0, 0.1, 9.0]), torch.tensor([[True, True, True, False]])
    zero, bounds = torch.zeros_like(logp), dict(log_clip_low=0.3, log_clip_high=0.4)
    for advantage, mean, open_ in [(2.0, -0.5 / 3, [0, 1, 1, 0]), (-2.0, 0.8 / 3, [1, 0, 1, 0])]:
        a = torch.full_like(logp, advantage)

        def function(x, a=a):
            return geometric_mean_ratio(x, zero, a, mask, **bounds)

        torch.testing.assert_close(function(logp), torch.full_like(logp, math.exp(mean)))
        # The sum over 4 tokens of one value: each open token gets 4 times a third of it.
        torch.testing.assert_close(slope(function, logp), f64(open_) * 4 / 3 * math.exp(mean))


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [  # old value 0, clip 0.5
        (0.25, 1.0, 0.28125, -0.75),
        (0.75, 1.0, 0.125, 0.0),  # moved far enough toward the target
        (-0.75, 1.0, 1.53125, -1.75),  # moved away from it
        (0.75, 0.25, 0.125, 0.5),  # beyond it: back
    ],
)
def test_value_loss_by_cases(value, target, loss, gradient):
    old, returns = f64([0.0]), f64([target])

    def function(v):
        return clipped_value_loss(v, old, returns, value_clip=0.5)

    torch.testing.assert_close(function(f64([value])), f64([loss]))
    torch.testing.assert_close(slope(function, f64([value])), f64([gradient]))


def test_without_bound_the_value_loss_is_half_the_squared_error():
    found = clipped_value_loss(f64([3.0]), f64([0.0]), f64([1.0]), value_clip=math.inf)
    assert found.tolist() == [[2.0]]
