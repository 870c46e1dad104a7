"""Losses of a token: manually computed values and gradients for given ratios."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    clip_high_indicator,
    clip_indicator,
    clip_low_indicator,
    clip_surrogate,
    clipped_value_loss,
    dual_clip_surrogate,
    geometric_mean_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_log_ratio,
    sequence_ratio,
    smoothed_surrogate,
    soft_gate_surrogate,
    token_ratio,
)
from purerl.algos.kl_cov import distance_penalty
from purerl.algos.parts.log_ratios import finite_logp, log_ratio, negative_log_likelihood
from purerl.algos.parts.surrogates import sequence_product_ratio
from purerl.algos.parts.values import squared_error
from tests.golden.helpers import assert_values, f64, gradient_of, logs, mask_of

CLIP = dict(clip_low=0.2, clip_high=0.3)
MASKS = mask_of("xx.", "...")


def test_losses_without_a_clip():
    logp, old, a = logs([0.5, 0.25]), logs([0.25, 0.5]), f64([3, -1])
    assert_values(token_ratio(logp, old), [2, 0.5])
    assert_values(policy_gradient(logp, a), [3 * math.log(2), -math.log(4)])  # -A logp
    assert_values(importance_surrogate(logp, old, a), [-6, 0.5])
    assert_values(gradient_of(lambda x: importance_surrogate(x, old, a), logp), [-6, 0.5])  # -A r too
    assert_values(negative_log_likelihood(logp), [math.log(2), math.log(4)])
    assert_values(distance_penalty(logp, old, mask_of("x.")), [math.log(2), 0])


def test_infinite_log_probabilities():
    logp, old = f64([-1, -math.inf, -2000, -math.inf]), f64([-math.inf, -math.inf, 0, -0.5])
    assert_values(finite_logp(logp), [-1, -1000, -2000, -1000])
    assert_values(log_ratio(logp, old), [999, 0, -2000, -999.5])
    assert_values(gradient_of(finite_logp, logp), [1, 0, 1, 0])


def test_squared_error():
    assert_values(squared_error(f64([3, 1]), f64([1, 4])), [4, 9])


def test_dual_clip_has_no_gradient_beyond_the_cap_if_the_advantage_is_negative():
    ratio, a = f64([2, 9, 9]), f64([-1, -1, 1])  # the clipped ratios are 2, the cap of 3, and 1.3 as in PPO
    assert_values(dual_clip_surrogate(ratio, a, **CLIP, ratio_cap=3.0), [2, 3, -1.3])
    assert_values(gradient_of(lambda r: dual_clip_surrogate(r, a, **CLIP, ratio_cap=3.0), ratio), [1, 0, 0])
    assert_values(clip_surrogate(ratio, a, **CLIP), [2, 9, -1.3])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [  # the gradient with respect to logp is -A r if the token is not clipped
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 2.0, -2.5, -2.5),
        (1.5, 2.0, -2.6, 0.0),  # A > 0 and r > 1.3: clipped
        (0.5, 2.0, -1.0, -1.0),  # A > 0 and r < 1: not clipped
        (1.0, -2.0, 2.0, 2.0),
        (0.9, -2.0, 1.8, 1.8),
        (0.5, -2.0, 1.6, 0.0),  # A < 0 and r < 0.8: clipped
        (1.5, -2.0, 3.0, 3.0),  # A < 0 and r > 1: not clipped
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_clip(ratio, advantage, loss, gradient):
    logp, old, a = f64([math.log(ratio) - 1.0]), f64([-1.0]), f64([advantage])
    torch.testing.assert_close(ppo_clip(logp, old, a, **CLIP), f64([loss]))
    assert_values(gradient_of(lambda x: ppo_clip(x, old, a, **CLIP), logp), [gradient])
    clipped = advantage != 0 and gradient == 0
    r = token_ratio(logp, old)
    assert bool(clip_indicator(r, a, **CLIP)) == clipped
    assert bool(clip_high_indicator(r, a, clip_high=CLIP["clip_high"])) == (clipped and advantage > 0)
    assert bool(clip_low_indicator(r, a, clip_low=CLIP["clip_low"])) == (clipped and advantage < 0)


def test_sequence_ratio_is_a_geometric_mean():
    logp, mask = f64([0.4, -0.1, 9.0], [9.0, 9.0, 9.0]), torch.tensor([[True, True, False], [False] * 3])
    ratio = sequence_ratio(logp, torch.zeros_like(logp), mask)
    torch.testing.assert_close(ratio[0, :2], f64(math.exp(0.15), math.exp(0.15)))


def test_sequence_product_ratio_is_a_product():
    # 2 * 3 in the first row. Each token's gradient is the value of the row, at the token alone.
    logp, mask = logs([2, 3, 99], [5, 5, 5]), MASKS
    ratio = sequence_product_ratio(logp, torch.zeros_like(logp), mask)
    assert_values(ratio[0], 6, 6, 6)
    weight = f64([1, 10, 0], [0, 0, 0])
    gradient = gradient_of(lambda x: weight * sequence_product_ratio(x, torch.zeros_like(x), mask), logp)
    assert_values(gradient, [6, 60, 0], [0, 0, 0])


def test_soft_gate_surrogate():
    logp, a = f64([math.log(1.5), math.log(0.5), math.log(1.5)]), f64([2.0, 2.0, -2.0])

    def function(x):
        return soft_gate_surrogate(x.exp(), a, gate_positive=1.0, gate_negative=3.0)

    up, down, negative = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-1.5))
    torch.testing.assert_close(function(logp), f64([-8 * up, -8 * down, 8 / 3 * negative]))
    # The gradient of -A r times 4 p (1 - p).
    gates = f64([4 * up * (1 - up), 4 * down * (1 - down), 4 * negative * (1 - negative)])
    torch.testing.assert_close(gradient_of(function, logp), gates * gradient_of(lambda x: -a * x.exp(), logp))


def test_sequence_log_ratio_ignores_masked_out_tokens():
    logp, old, mask = f64([1.0, 2.0, 99.0], [5.0, 5.0, 5.0]), f64([0.5, 3.0, 0.0], [0.0, 0.0, 0.0]), MASKS
    assert sequence_log_ratio(logp, old, mask).tolist() == [-0.5, 0.0]


def test_geometric_mean_ratio():
    # The log-ratios are 1.0, -1.0, 0.1 and a masked-out one. They are clipped at 0.4 if A > 0, at -0.3 if A < 0.
    logp, mask = f64([1.0, -1.0, 0.1, 9.0]), torch.tensor([[True, True, True, False]])
    zero, bounds = torch.zeros_like(logp), dict(log_clip_low=0.3, log_clip_high=0.4)
    for advantage, mean, is_open in [(2.0, -0.5 / 3, [0, 1, 1, 0]), (-2.0, 0.8 / 3, [1, 0, 1, 0])]:
        a = torch.full_like(logp, advantage)

        def function(x, a=a):
            return geometric_mean_ratio(x, zero, a, mask, **bounds)

        torch.testing.assert_close(function(logp), torch.full_like(logp, math.exp(mean)))
        # All 4 positions have the same value. The gradient of their sum is 4 times a third of it at each open token.
        torch.testing.assert_close(gradient_of(function, logp), f64(is_open) * 4 / 3 * math.exp(mean))


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [  # old value 0, clip 0.5
        (0.25, 1.0, 0.28125, -0.75),
        (0.75, 1.0, 0.125, 0.0),  # clipped: more than 0.5 toward the target
        (-0.75, 1.0, 1.53125, -1.75),  # away from the target: not clipped
        (0.75, 0.25, 0.125, 0.5),  # beyond the target: not clipped
    ],
)
def test_clipped_value_loss(value, target, loss, gradient):
    old, returns = f64([0.0]), f64([target])

    def function(v):
        return clipped_value_loss(v, old, returns, value_clip=0.5)

    torch.testing.assert_close(function(f64([value])), f64([loss]))
    torch.testing.assert_close(gradient_of(function, f64([value])), f64([gradient]))


def test_clipped_value_loss_without_bound_is_half_the_squared_error():
    actual = clipped_value_loss(f64([3.0]), f64([0.0]), f64([1.0]), value_clip=math.inf)
    assert actual.tolist() == [[2.0]]


def test_smoothed_surrogate_moves_the_ratio_to_1():
    """With 1/4 of the old policy, the ratio 3 becomes 3/4 * 3 + 1/4 = 5/2."""
    ratio = f64([3, 0, 1])
    assert_values(smoothed_surrogate(ratio, f64([-1, 2, 2]), smoothing=0.25), [2.5, -0.5, -2])
    assert_values(
        gradient_of(lambda r: smoothed_surrogate(r, f64([-1, 2, 2]), smoothing=0.25), ratio), [0.75, -1.5, -1.5]
    )
