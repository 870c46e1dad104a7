"""Identities between surrogates and ratios, and edge cases."""

from __future__ import annotations

from functools import partial

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
    soft_gate_surrogate,
    token_ratio,
)
from purerl.errors import InputError
from tests.algos.helpers import f64, gradient_of

CLIP = dict(clip_low=0.2, clip_high=0.3)


def test_surrogates_have_the_policy_gradient_if_the_policy_has_not_changed():
    logp, a, mask = f64([-1.0, -2.0], [-0.5, -3.0]), f64([1.0, -2.0], [3.0, 0.5]), torch.ones(2, 2) > 0
    reinforce = gradient_of(lambda x: policy_gradient(x, a), logp)
    surrogates = [
        lambda x: ppo_clip(x, logp, a, **CLIP),
        lambda x: importance_surrogate(x, logp, a),
        lambda x: clip_surrogate(sequence_ratio(x, logp, mask), a, **CLIP),
    ]
    for surrogate in surrogates:
        torch.testing.assert_close(gradient_of(surrogate, logp), reinforce)


def test_mean_of_sequence_ratio_over_tokens_has_the_gradient_of_the_row_ratio():
    logp, old, mask = f64([-0.4, -0.1, -2.0]), f64([-0.3, -0.6, -2.0]), torch.tensor([[True, True, False]])

    def mean_of_tokens(x):
        return torch.where(mask, sequence_ratio(x, old, mask), 0).sum(-1) / 2

    def row_ratio(x):
        return (torch.where(mask, x - old, 0).sum(-1) / 2).exp()

    torch.testing.assert_close(gradient_of(mean_of_tokens, logp), gradient_of(row_ratio, logp))


def test_sequence_ratio_of_one_token_equals_token_ratio():
    logp, old, mask = f64([-0.4], [-2.0]), f64([-0.9], [-1.0]), torch.ones(2, 1) > 0
    torch.testing.assert_close(sequence_ratio(logp, old, mask), token_ratio(logp, old))
    torch.testing.assert_close(gradient_of(lambda x: sequence_ratio(x, old, mask), logp), token_ratio(logp, old))


RATIOS, SIGNS = f64([0.01, 0.5, 0.79, 1.0, 1.31, 2.9, 3.1, 50.0] * 2), f64([1.5] * 8 + [-1.5] * 8)


def test_dual_clip_and_two_sided_clip_are_the_same_function():
    """Value and gradient of our function equal those of both papers, also for A < 0 and a large r."""

    def dual(r):  # 1912.09729
        clip = torch.maximum(-SIGNS * r, -SIGNS * r.clamp(0.8, 1.3))
        return torch.where(SIGNS < 0, torch.minimum(clip, -SIGNS * 3.0), clip)

    def two_sided(r):  # 2505.07291
        return torch.maximum(-SIGNS * r.clamp(max=3.0), -SIGNS * r.clamp(0.8, 1.3))

    def ours(r):
        return dual_clip_surrogate(r, SIGNS, **CLIP, ratio_cap=3.0)

    for reference in (dual, two_sided):
        torch.testing.assert_close(ours(RATIOS), reference(RATIOS))
        torch.testing.assert_close(gradient_of(ours, RATIOS), gradient_of(reference, RATIOS))
    assert gradient_of(ours, RATIOS)[0, -3:].tolist() == [1.5, 0.0, 0.0]


def test_geometric_mean_ratio_of_a_row_without_counted_tokens_is_one():
    mask, logp = torch.zeros(1, 2) > 0, f64([7.0, 7.0])
    ratio = geometric_mean_ratio(logp, -logp, logp, mask, log_clip_low=0.4, log_clip_high=0.4)
    assert ratio.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_ppo_clip_is_finite_for_large_log_ratios(distance):
    logp, zero, a = torch.full((1, 2), distance), torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])
    assert ppo_clip(logp, zero, a, **CLIP).isfinite().all()
    assert gradient_of(lambda x: ppo_clip(x, zero, a, **CLIP), logp).isfinite().all()


def test_an_advantage_of_rows_is_none_of_tokens():
    logp, advantage = torch.zeros(3, 3), torch.ones(3)
    message = r"^values of other shapes\n  got:  \[3\] and \[3, 3\]\n  need: both per token, or both per row"
    for loss in (
        partial(ppo_clip, clip_low=0.2, clip_high=0.2),
        lambda x, _, a: dual_clip_surrogate(x, a, clip_low=0.2, clip_high=0.2, ratio_cap=3.0),
        lambda x, _, a: soft_gate_surrogate(x, a, gate_positive=1.0, gate_negative=2.0),
        lambda x, _, a: policy_gradient(x, a),
        importance_surrogate,
    ):
        with pytest.raises(InputError, match=message):
            loss(logp, logp, advantage)
        assert loss(logp, logp, advantage.unsqueeze(-1)).shape == (3, 3)
