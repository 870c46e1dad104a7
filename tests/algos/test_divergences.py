"""Means and gradients of KL estimates, by exact enumeration of the tokens of a small softmax policy."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import k1, k2, k3, kl_reward
from purerl.algos.parts.divergences import importance_k3, straight_through, weighted_k2, weighted_k3

LOGITS = torch.tensor([0.3, -1.0, 0.9, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.7, -0.4, 1.2], dtype=torch.float64).log_softmax(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q), from log-probabilities."""
    return (p.exp() * (p - q)).sum()


def gradient(function) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(function(logits.log_softmax(-1)), logits)[0]


def mean_gradient(estimator) -> torch.Tensor:
    """The expected gradient of the estimate at a token that the policy samples."""
    probability = LOGITS.softmax(-1)
    return gradient(lambda logp: (probability * estimator(logp, REFERENCE)).sum())


@pytest.mark.parametrize("estimator", [k1, k3])
def test_k1_and_k3_have_an_unbiased_mean(estimator):
    logp = LOGITS.log_softmax(-1)
    torch.testing.assert_close((logp.exp() * estimator(logp, REFERENCE)).sum(), kl(logp, REFERENCE))


def test_k2_has_a_biased_mean():
    logp = LOGITS.log_softmax(-1)
    assert (logp.exp() * k2(logp, REFERENCE)).sum() > kl(logp, REFERENCE) + 0.1


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (k1, lambda logp: 0 * logp.sum()),
        (k2, lambda logp: kl(logp, REFERENCE)),
        (k3, lambda logp: kl(REFERENCE, logp)),
    ],
)
def test_mean_gradients_of_kl_estimates(estimator, expected):
    torch.testing.assert_close(mean_gradient(estimator), gradient(expected), atol=1e-12, rtol=0)


def test_k1_in_the_reward_gives_the_gradient_of_the_kl_divergence():
    logp = LOGITS.log_softmax(-1)
    reward = kl_reward(torch.zeros_like(logp), logp, REFERENCE, kl_reward_coef=0.5)
    actual = gradient(lambda x: (LOGITS.softmax(-1) * x * reward).sum())
    torch.testing.assert_close(actual, -0.5 * gradient(lambda x: kl(x, REFERENCE)))


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_k3_is_finite_for_large_log_ratios(distance):
    logp = torch.full((1,), distance, requires_grad=True)
    value = k3(logp, torch.zeros(1))
    assert value.isfinite()
    assert torch.autograd.grad(value.sum(), logp)[0].isfinite()


# --- combined estimates ------------------------------------------------------------------------------------------


def test_straight_through_has_the_value_of_k3_and_the_gradient_of_k2():
    logp = LOGITS.log_softmax(-1).requires_grad_()
    combined = straight_through(k3(logp, REFERENCE), k2(logp, REFERENCE))
    assert combined.equal(k3(logp, REFERENCE))
    [actual] = torch.autograd.grad(combined.sum(), logp)
    torch.testing.assert_close(actual, torch.autograd.grad(k2(logp, REFERENCE).sum(), logp)[0])


@pytest.mark.parametrize("estimator", [importance_k3, weighted_k3, weighted_k2])
def test_weighted_estimates_are_finite_for_large_log_ratios(estimator):
    logp = torch.tensor([[-1e3, 1e3, -1e3]], requires_grad=True)
    actual = estimator(logp, torch.tensor([[1e3, -1e3, 1e3]]), torch.tensor([[1e3, 1e3, -1e3]]))
    assert actual.isfinite().all()
    assert torch.autograd.grad(actual.sum(), logp)[0].isfinite().all()
