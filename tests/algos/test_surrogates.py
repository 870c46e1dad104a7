"""Losses at a token, value and gradient by cases; reductions by hand."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    clip_surrogate,
    dual_clip_surrogate,
    geometric_mean_ratio,
    importance_surrogate,
    policy_gradient,
    ppo_clip,
    sequence_ratio,
    token_ratio,
)

CLIP = dict(clip_low=0.2, clip_high=0.3)
MASKS = torch.tensor([[True, True, False], [False, False, False]])


def f64(*rows: list) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def slope(function, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of function(x)."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


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


def test_a_row_without_counted_tokens_has_not_moved():
    nothing, far = torch.zeros(1, 2) > 0, f64([7.0, 7.0])
    ratio = geometric_mean_ratio(far, -far, far, nothing, log_clip_low=0.4, log_clip_high=0.4)
    assert ratio.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_no_distance_overflows(distance):
    logp, zero, a = torch.full((1, 2), distance), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    assert ppo_clip(logp, zero, a, **CLIP).isfinite().all()
    assert slope(lambda x: ppo_clip(x, zero, a, **CLIP), logp).isfinite().all()


LOSS = f64([2.0, 4.0, math.nan], [6.0, math.nan, math.nan])
MASK = LOSS.isfinite()
