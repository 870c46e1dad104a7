"""Losses at a token, value and gradient by cases; reductions by hand."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    Counts,
    clip_surrogate,
    clipped,
    clipped_value_loss,
    constant_norm,
    dual_clip_surrogate,
    geometric_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_log_ratio,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    sequence_ratio,
    soft_gate_surrogate,
    token_mean,
    token_ratio,
    token_sum,
)

CLIP = dict(clip_low=0.2, clip_high=0.3)
MASKS = torch.tensor([[True, True, False], [False, False, False]])


def f64(*rows: list) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def slope(function, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


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
    assert bool(clipped(token_ratio(logp, old), a, **CLIP)) == (advantage != 0 and gradient == 0)


def test_all_surrogates_begin_with_the_policy_gradient():
    logp, a, mask = f64([-1.0, -2.0], [-0.5, -3.0]), f64([1.0, -2.0], [3.0, 0.5]), torch.ones(2, 2) > 0
    reinforce = slope(lambda x: policy_gradient(x, a), logp)
    others = [
        lambda x: ppo_clip(x, logp, a, **CLIP),
        lambda x: importance_surrogate(x, logp, a),
        lambda x: clip_surrogate(sequence_ratio(x, logp, mask), a, **CLIP),
    ]
    for other in others:
        torch.testing.assert_close(slope(other, logp), reinforce)


def test_the_sequence_ratio_is_a_geometric_mean():
    logp, mask = f64([0.4, -0.1, 9.0], [9.0, 9.0, 9.0]), torch.tensor([[True, True, False], [False] * 3])
    ratio = sequence_ratio(logp, torch.zeros_like(logp), mask)
    torch.testing.assert_close(ratio[0, :2], f64(math.exp(0.15), math.exp(0.15)))


def test_its_mean_over_tokens_has_the_gradient_of_the_row():
    logp, old, mask = f64([-0.4, -0.1, -2.0]), f64([-0.3, -0.6, -2.0]), torch.tensor([[True, True, False]])

    def mean_of_tokens(x):
        return torch.where(mask, sequence_ratio(x, old, mask), 0).sum(-1) / 2

    def of_the_row(x):
        return (torch.where(mask, x - old, 0).sum(-1) / 2).exp()

    torch.testing.assert_close(slope(mean_of_tokens, logp), slope(of_the_row, logp))


def test_at_one_token_sequence_and_token_ratio_are_the_same():
    logp, old, mask = f64([-0.4], [-2.0]), f64([-0.9], [-1.0]), torch.ones(2, 1) > 0
    torch.testing.assert_close(sequence_ratio(logp, old, mask), token_ratio(logp, old))
    torch.testing.assert_close(slope(lambda x: sequence_ratio(x, old, mask), logp), token_ratio(logp, old))


RATIOS, SIGNS = f64([0.01, 0.5, 0.79, 1.0, 1.31, 2.9, 3.1, 50.0] * 2), f64([1.5] * 8 + [-1.5] * 8)


def test_dual_clip_and_the_two_sided_clip_are_one():
    """Each as its authors write it, in value and in gradient: the part without the clip, where A < 0 and r is large."""

    def dual(r):  # 1912.09729
        clip = torch.maximum(-SIGNS * r, -SIGNS * r.clamp(0.8, 1.3))
        return torch.where(SIGNS < 0, torch.minimum(clip, -SIGNS * 3.0), clip)

    def two_sided(r):  # 2505.07291
        return torch.maximum(-SIGNS * r.clamp(max=3.0), -SIGNS * r.clamp(0.8, 1.3))

    def ours(r):
        return dual_clip_surrogate(r, SIGNS, **CLIP, ratio_cap=3.0)

    for theirs in (dual, two_sided):
        torch.testing.assert_close(ours(RATIOS), theirs(RATIOS))
        torch.testing.assert_close(slope(ours, RATIOS), slope(theirs, RATIOS))
    assert slope(ours, RATIOS)[0, -3:].tolist() == [1.5, 0.0, 0.0]


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
            return geometric_ratio(x, zero, a, mask, **bounds)

        torch.testing.assert_close(function(logp), torch.full_like(logp, math.exp(mean)))
        # The sum over 4 tokens of one value: each open token gets 4 times a third of it.
        torch.testing.assert_close(slope(function, logp), f64(open_) * 4 / 3 * math.exp(mean))


def test_a_row_without_counted_tokens_has_not_moved():
    nothing, far = torch.zeros(1, 2) > 0, f64([7.0, 7.0])
    ratio = geometric_ratio(far, -far, far, nothing, log_clip_low=0.4, log_clip_high=0.4)
    assert ratio.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_no_distance_overflows(distance):
    logp, zero, a = torch.full((1, 2), distance), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    assert ppo_clip(logp, zero, a, **CLIP).isfinite().all()
    assert slope(lambda x: ppo_clip(x, zero, a, **CLIP), logp).isfinite().all()


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [  # old value 0, clip 0.5
        (0.25, 1.0, 0.28125, -0.75),
        (0.75, 1.0, 0.125, 0.0),  # moved far enough towards the target
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


LOSS = f64([2.0, 4.0, math.nan], [6.0, math.nan, math.nan])
MASK = LOSS.isfinite()


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (token_sum, 12.0),
        (token_mean, 12 / 5),  # of a step with 5 tokens in 3 rows, of which these are some
        (sequence_mean_of_token_mean, (3 + 6) / 3),
        (sequence_mean_of_token_sum, 12 / 3),
        (lambda *of: constant_norm(*of, length=8.0), 12 / 24),
    ],
)
def test_reductions_by_hand(reduce, expected):
    counts = Counts(torch.tensor(5), torch.tensor(3))
    torch.testing.assert_close(reduce(LOSS, MASK, counts), f64(expected)[0])
    none = Counts(torch.tensor(0), torch.tensor(0))
    nothing = slope(lambda x: reduce(x, torch.zeros_like(MASK), none), torch.ones(2, 3))
    assert not nothing.any()
