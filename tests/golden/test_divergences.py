"""Divergences from a reference and from a teacher, for tokens with given probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    adapt_entropy_coef,
    adapt_kl_coef,
    importance_k3,
    k1,
    k2,
    k3,
    kl_reward,
    on_policy_k3,
    prefix_weight,
    straight_through,
    teacher_advantage,
    topk_forward_kl,
    topk_jsd,
    topk_reverse_kl,
    weighted_k2,
    weighted_k3,
)
from purerl.algos.parts.divergences import absolute_log_ratio
from tests.golden.helpers import assert_values, f64, gradient_of, logs, mask_of


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [  # x = log 2: the policy gives the token twice the probability of the reference
        (k1, math.log(2), 1),
        (k2, math.log(2) ** 2 / 2, math.log(2)),
        (k3, 0.5 + math.log(2) - 1, 0.5),  # exp(-x) + x - 1, and 1 - exp(-x)
        (absolute_log_ratio, math.log(2), 1),
    ],
)
def test_kl_estimates_of_a_token_with_twice_the_probability(estimator, value, gradient):
    logp, ref = logs([0.5]), logs([0.25])
    assert_values(estimator(logp, ref), [value])
    assert_values(gradient_of(lambda x: estimator(x, ref), logp), [gradient])


def test_kl_reward_subtracts_k1():
    assert_values(kl_reward(f64([1, 1]), f64([-1, -3]), f64([-3, -1]), kl_reward_coef=0.1), [0.8, 1.2])


def test_straight_through_value_and_gradient():
    assert_values(straight_through(5 * f64(3), f64(3).square()), 15)
    assert_values(gradient_of(lambda x: straight_through(5 * x, x.square()), f64(3)), 6)


def test_topk_kl_of_two_tokens():
    """The policy has the probabilities 1/2 and 1/4, the teacher 1/4 and 1/4."""
    policy, teacher = logs([[0.5, 0.25]]), logs([[0.25, 0.25]])
    assert_values(topk_reverse_kl(policy, teacher), [0.5 * math.log(2) - 0.25])  # 1/2 log 2 - 1/2 + 1/4, and 0
    assert_values(topk_forward_kl(policy, teacher), [-0.25 * math.log(2) + 0.25])  # 1/4 log 1/2 - 1/4 + 1/2


def test_straight_through_value_is_exact_with_a_large_gradient_term():
    actual = straight_through(torch.tensor([1e-3]), torch.tensor([1e9]))
    assert actual.tolist() == torch.tensor([1e-3]).tolist()


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [  # logp, old, ref = log 2, 0, 0: r = 2, x = log 2, k3 = x - 1/2, with the gradient 1/2
        (importance_k3, 2 * (math.log(2) - 0.5), 2 * (math.log(2) - 0.5) + 2 * 0.5),
        (weighted_k3, 2 * (math.log(2) - 0.5), 2 * 0.5),
        (weighted_k2, math.log(2) ** 2, 2 * math.log(2)),
    ],
)
def test_weighted_kl_estimates(estimator, value, gradient):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    logp = torch.full((1, 1), math.log(2), dtype=torch.float64, requires_grad=True)
    actual = estimator(logp, zero, zero)
    assert float(actual.detach()) == pytest.approx(value)
    assert float(torch.autograd.grad(actual.sum(), logp)[0]) == pytest.approx(gradient)


def test_on_policy_k3_has_the_value_of_k3_and_the_gradient_through_a_ratio_of_one():
    zero = torch.zeros(1, 1, dtype=torch.float64)  # x = log 2, k3 = x - 1/2, with the gradient 1/2
    logp = torch.full((1, 1), math.log(2), dtype=torch.float64)
    assert float(on_policy_k3(logp, zero)) == pytest.approx(math.log(2) - 0.5)
    assert float(gradient_of(lambda x: on_policy_k3(x, zero), logp)) == pytest.approx(math.log(2) - 0.5 + 0.5)


def test_k3_of_a_small_log_ratio_is_accurate_and_not_negative():
    x = torch.linspace(-1e-3, 1e-3, 999)
    actual = k3(x, torch.zeros_like(x))
    assert (actual >= 0).all()
    torch.testing.assert_close(actual, x.square() / 2 - x**3 / 6, rtol=1e-3, atol=2e-10)


def test_kl_coefficient_is_at_most_halved_and_never_stays_at_0():
    actual = adapt_kl_coef(torch.tensor(0.5), torch.tensor(0.0), torch.tensor(256), target=6.0, horizon=50.0)
    assert float(actual) == 0.25


@pytest.mark.parametrize("coefficient", [0.0, 5e-324, 1e-9])
def test_kl_coefficient_leaves_0_as_soon_as_the_divergence_is_above_the_target(coefficient):
    start, rows = torch.tensor(coefficient, dtype=torch.float64), torch.tensor(50)
    keywords = dict(target=6.0, horizon=100.0)
    assert float(adapt_kl_coef(start, torch.tensor(5.0), rows, **keywords)) <= coefficient
    raised = adapt_kl_coef(start, torch.tensor(7.0), rows, **keywords)
    assert float(raised) == 1e-6
    assert float(adapt_kl_coef(raised, torch.tensor(60.0), rows, **keywords)) == pytest.approx(1.1e-6)


def test_entropy_coefficient_leaves_0():
    keywords = dict(target=0.2, step_size=0.125, max_coef=0.625)
    assert float(adapt_entropy_coef(torch.tensor(0.0), torch.tensor(0.3), **keywords)) == 0
    assert float(adapt_entropy_coef(torch.tensor(0.0), torch.tensor(0.1), **keywords)) == 0.125


@pytest.mark.parametrize(("entropy", "expected"), [(0.1, 0.625), (0.2, 0.5), (0.3, 0.375)])
def test_entropy_coefficient_changes_by_one_step(entropy, expected):
    keywords = dict(target=0.2, step_size=0.125, max_coef=0.625)
    actual = adapt_entropy_coef(torch.tensor(0.5), torch.tensor(entropy), **keywords)
    assert float(actual) == expected
    if entropy == 0.1:
        assert float(adapt_entropy_coef(actual, torch.tensor(entropy), **keywords)) == 0.625, "bounded by max_coef"


def test_absolute_log_ratio():
    assert absolute_log_ratio(torch.tensor([[-3.0, 1.0]]), torch.tensor([[-1.0, 0.5]])).tolist() == [[2.0, 0.5]]


@pytest.mark.parametrize(
    ("divergence", "expected"), [(6.0, 0.5), (6.6, 0.525), (60.0, 0.55), (5.7, 0.4875), (-9.0, 0.45)]
)
def test_kl_coefficient_changes_by_at_most_a_fifth(divergence, expected):
    actual = adapt_kl_coef(torch.tensor(0.5), torch.tensor(divergence), torch.tensor(50), target=6.0, horizon=100.0)
    assert float(actual) == pytest.approx(expected)


def test_teacher_advantage_has_no_gradient():
    logp, teacher = f64([-3.0, -1.0]).requires_grad_(), f64([-1.0, -2.0]).requires_grad_()
    actual = teacher_advantage(teacher, logp, distillation_coef=0.5)
    assert actual.tolist() == [[1.0, -0.5]]
    assert not actual.requires_grad


def test_prefix_weight_falls_with_the_discrepancy_before_a_token():
    advantage, mask = f64([1, -9, -3, 4], [0, 0, 0, 0]), mask_of("x.xx", "xx..")
    # The sizes 1, 3 and 4 sum to 8; before the four tokens there are 0, 1, 1 and 4.
    assert_values(prefix_weight(advantage, mask, weight_coef=0.8), [1.8, 1.7, 1.7, 1.4], [1.8, 1.8, 1.8, 1.8])


@pytest.mark.parametrize("beta", [0.5, 0.25])
def test_topk_jsd_has_one_term_for_all_other_tokens(beta):
    """Policy 1/2, 1/4, teacher 1/4, 1/4: the others have 1/4 and 1/2."""
    pi, p = [1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 4, 1 / 2]
    m = [beta * b + (1 - beta) * a for a, b in zip(pi, p, strict=True)]
    expected = beta * sum(b * math.log(b / c) for b, c in zip(p, m, strict=True))
    expected += (1 - beta) * sum(a * math.log(a / c) for a, c in zip(pi, m, strict=True))
    assert_values(topk_jsd(logs([[0.5, 0.25]]), logs([[0.25, 0.25]]), beta=beta), [expected])


def test_topk_jsd_is_finite_for_impossible_tokens():
    """The largest value, at beta = 1/2, is log 2, up to the smallest probability of other tokens."""
    actual = topk_jsd(f64([[0, -math.inf]]), f64([[-math.inf, 0]]), beta=0.5)
    assert_values(actual, [math.log(2)], atol=1e-5)
