"""What the estimators of a divergence estimate, by exact enumeration of a small softmax policy."""

from __future__ import annotations

import pytest
import torch

from purerl.algos import k1, k2, k3, kl_reward

LOGITS = torch.tensor([0.3, -1.0, 0.9, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.0, 0.7, -0.4, 1.2], dtype=torch.float64).log_softmax(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of log-probabilities."""
    return (p.exp() * (p - q)).sum()


def gradient(function) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(function(logits.log_softmax(-1)), logits)[0]


def mean_gradient(estimator) -> torch.Tensor:
    """The expectation, over tokens drawn from the policy, of the gradient at the drawn token."""
    probability = LOGITS.softmax(-1)
    return gradient(lambda logp: (probability * estimator(logp, REFERENCE)).sum())


@pytest.mark.parametrize("estimator", [k1, k3])
def test_the_mean_is_the_divergence(estimator):
    logp = LOGITS.log_softmax(-1)
    torch.testing.assert_close((logp.exp() * estimator(logp, REFERENCE)).sum(), kl(logp, REFERENCE))


def test_the_mean_of_k2_is_not():
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
def test_the_mean_gradient_is_the_one_that_is_said(estimator, expected):
    torch.testing.assert_close(mean_gradient(estimator), gradient(expected), atol=1e-12, rtol=0)


def test_k1_in_the_reward_has_the_gradient_of_the_divergence():
    logp = LOGITS.log_softmax(-1)
    reward = kl_reward(torch.zeros_like(logp), logp, REFERENCE, kl_reward_coef=0.5)
    found = gradient(lambda x: (LOGITS.softmax(-1) * x * reward).sum())
    torch.testing.assert_close(found, -0.5 * gradient(lambda x: kl(x, REFERENCE)))


@pytest.mark.parametrize("distance", [-1e3, 1e3])
def test_k3_is_finite_at_any_distance(distance):
    logp = torch.full((1,), distance, requires_grad=True)
    value = k3(logp, torch.zeros(1))
    assert value.isfinite()
    assert torch.autograd.grad(value.sum(), logp)[0].isfinite()
