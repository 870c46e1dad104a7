"""Divergences from a reference, and from a teacher, of tokens whose probabilities are given."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    adapt_entropy_coef,
    importance_k3,
    k1,
    k2,
    k3,
    kl_reward,
    straight_through,
    teacher_advantage,
    topk_forward_kl,
    topk_reverse_kl,
    weighted_k2,
    weighted_k3,
)
from purerl.algos.parts.divergences import absolute_log_ratio, adapt_kl_coef
from tests.golden.hand import close, f64, logs, slope


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [  # x = log 2: the token is twice as likely as under the reference
        (k1, math.log(2), 1),
        (k2, math.log(2) ** 2 / 2, math.log(2)),
        (k3, 0.5 + math.log(2) - 1, 0.5),  # exp(-x) + x - 1, and 1 - exp(-x)
        (absolute_log_ratio, math.log(2), 1),
    ],
)
def test_of_a_token_that_is_twice_as_likely(estimator, value, gradient):
    logp, ref = logs([0.5]), logs([0.25])
    close(estimator(logp, ref), [value])
    close(slope(lambda x: estimator(x, ref), logp), [gradient])


def test_a_token_pays_for_its_distance():
    close(kl_reward(f64([1, 1]), f64([-1, -3]), f64([-3, -1]), kl_reward_coef=0.1), [0.8, 1.2])


def test_the_value_of_one_and_the_gradient_of_another():
    close(straight_through(5 * f64(3), f64(3).square()), 15)
    close(slope(lambda x: straight_through(5 * x, x.square()), f64(3)), 6)


def test_over_some_tokens():
    """Probabilities 1/2 and 1/4 of the policy against 1/4 and 1/4 of the teacher."""
    mine, teacher = logs([[0.5, 0.25]]), logs([[0.25, 0.25]])
    close(topk_reverse_kl(mine, teacher), [0.5 * math.log(2) - 0.25])  # 1/2 log 2 - 1/2 + 1/4, and nothing
    close(topk_forward_kl(mine, teacher), [-0.25 * math.log(2) + 0.25])  # 1/4 log 1/2 - 1/4 + 1/2


def test_a_straight_through_estimate_keeps_its_value_beside_a_large_gradient():
    found = straight_through(torch.tensor([1e-3]), torch.tensor([1e9]))
    assert found.tolist() == torch.tensor([1e-3]).tolist()


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [  # logp, old, ref = log 2, 0, 0: r = 2, x = log 2, k3 = x - 1/2, with the slope 1/2
        (importance_k3, 2 * (math.log(2) - 0.5), 2 * (math.log(2) - 0.5) + 2 * 0.5),
        (weighted_k3, 2 * (math.log(2) - 0.5), 2 * 0.5),
        (weighted_k2, math.log(2) ** 2, 2 * math.log(2)),
    ],
)
def test_weighed_estimates_by_hand(estimator, value, slope):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    logp = torch.full((1, 1), math.log(2), dtype=torch.float64, requires_grad=True)
    found = estimator(logp, zero, zero)
    assert float(found.detach()) == pytest.approx(value)
    assert float(torch.autograd.grad(found.sum(), logp)[0]) == pytest.approx(slope)


def test_k3_of_a_small_log_ratio_has_digits_and_a_sign():
    x = torch.linspace(-1e-3, 1e-3, 999)
    found = k3(x, torch.zeros_like(x))
    assert (found >= 0).all()
    torch.testing.assert_close(found, x.square() / 2 - x**3 / 6, rtol=1e-3, atol=2e-10)


def test_the_coefficient_never_turns_its_sign():
    found = adapt_kl_coef(torch.tensor(0.5), torch.tensor(0.0), torch.tensor(256.0), target=6.0, horizon=50.0)
    assert float(found) == 0.0


@pytest.mark.parametrize(("entropy", "expected"), [(0.1, 0.625), (0.2, 0.5), (0.3, 0.375)])
def test_the_entropy_s_coefficient_goes_a_step_up_or_down(entropy, expected):
    keywords = dict(target=0.2, step_size=0.125, max_coef=0.625)
    found = adapt_entropy_coef(torch.tensor(0.5), torch.tensor(entropy), **keywords)
    assert float(found) == expected
    if entropy == 0.1:
        assert float(adapt_entropy_coef(found, torch.tensor(entropy), **keywords)) == 0.625, "and no further"


def test_absolute_by_hand():
    assert absolute_log_ratio(torch.tensor([[-3.0, 1.0]]), torch.tensor([[-1.0, 0.5]])).tolist() == [[2.0, 0.5]]


@pytest.mark.parametrize(
    ("divergence", "expected"), [(6.0, 0.5), (6.6, 0.525), (60.0, 0.55), (5.7, 0.4875), (-9.0, 0.45)]
)
def test_the_coefficient_follows_the_divergence_by_a_fifth_at_most(divergence, expected):
    found = adapt_kl_coef(torch.tensor(0.5), torch.tensor(divergence), torch.tensor(50.0), target=6.0, horizon=100.0)
    assert float(found) == pytest.approx(expected)


def test_the_teacher_s_advantage_has_no_gradient():
    logp, teacher = f64([-3.0, -1.0]).requires_grad_(), f64([-1.0, -2.0]).requires_grad_()
    found = teacher_advantage(teacher, logp, distillation_coef=0.5)
    assert found.tolist() == [[1.0, -0.5]]
    assert not found.requires_grad
