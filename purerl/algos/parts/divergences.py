"""Estimates of the divergence of a policy from a reference, at each token, from the sampled token alone.

With x = logp - ref_logp, in nats, and tokens sampled from the policy:

        value               its mean                    gradient of its mean, prefix fixed
    k1  x                   KL(pi || ref)               0: use it in the reward, never as a loss
    k2  x^2 / 2             biased                      that of KL(pi || ref)
    k3  exp(-x) + x - 1     KL(pi || ref), never < 0    that of KL(ref || pi)
    absolute   abs(x)       biased                      biased

Value and gradient may come from two of them: `straight_through` of k3 and k2 has an unbiased value and the gradient of
KL(pi || ref).

Once the policy has moved away from the one that sampled the tokens, a token has to be weighed by the ratio
r = exp(logp - old_logp). Where the gradient goes makes the difference:

        value                           its mean                    gradient of its mean, prefix fixed
    importance_k3   r k3                KL(pi || ref)               that of KL(pi || ref)
    weighed_k3      sg(r) k3            KL(pi || ref)               that of KL(ref || pi)
    weighed_k2      sg(r) k2            biased                      that of KL(pi || ref)

Sources: Schulman, "Approximating KL divergence" (2020); DeepSeek-V3.2 (2512.02556) for r k3. In k3 and in r, log-ratios
are clamped to +-20, value and gradient.
"""

from __future__ import annotations

from torch.nn.functional import mse_loss

from purerl.algos.parts.surrogates import LOG_RATIO_BOUND, token_ratio
from purerl.types import Scalar, TokenFloat

__all__ = [
    "absolute",
    "adapt_kl_coef",
    "importance_k3",
    "k1",
    "k2",
    "k3",
    "kl_reward",
    "straight_through",
    "weighted_k2",
    "weighted_k3",
]

LARGEST_ERROR = 0.2
"""What counts of the relative error of a divergence, at most, when its coefficient is adapted (1909.08593)."""


def k1(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """x: unbiased, of either sign, without a gradient in the mean."""
    return logp - ref_logp


def k2(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """x^2 / 2: biased, but its gradient is unbiased for KL(pi || ref)."""
    return mse_loss(logp, ref_logp, reduction="none") / 2


def k3(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """exp(-x) + x - 1: unbiased, of low variance, never negative.

    >>> import torch
    >>> k3(torch.tensor([0.0, 0.0]), torch.tensor([0.0, -1.0])).round(decimals=4)
    tensor([0.0000, 0.3679])
    """
    x = (logp - ref_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (-x).expm1() + x  # with exp() - 1, half the digits of a small x would be lost, and the sign with them


def absolute(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """abs(x): neither its value nor its gradient is that of a divergence; kept for comparison with older work."""
    return (logp - ref_logp).abs()


def straight_through(value: TokenFloat, gradient: TokenFloat) -> TokenFloat:
    """The value of one estimate and the gradient of another.

    >>> import torch
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> y = straight_through(5 * x, x.square())
    >>> y.detach(), torch.autograd.grad(y.sum(), x)[0]
    (tensor([15.]), tensor([6.]))
    """
    return value.detach() + (gradient - gradient.detach())


def importance_k3(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Gives r k3, with the gradient through both: value and gradient are unbiased for KL(pi || ref)."""
    return token_ratio(logp, old_logp) * k3(logp, ref_logp)


def weighted_k3(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """sg(r) k3: the value is unbiased for KL(pi || ref), and the gradient for KL(ref || pi)."""
    return token_ratio(logp, old_logp).detach() * k3(logp, ref_logp)


def weighted_k2(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """sg(r) k2: the gradient is unbiased for KL(pi || ref)."""
    return token_ratio(logp, old_logp).detach() * k2(logp, ref_logp)


def adapt_kl_coef(coefficient: Scalar, divergence: Scalar, rows: Scalar, *, target: float, horizon: float) -> Scalar:
    """The next coefficient: coefficient * max(0, 1 + clip(divergence / target - 1, -0.2, 0.2) * rows / horizon).

    Source: Ziegler et al. 2019 (1909.08593), whose horizon is so long that the factor never comes near 0.

    >>> import torch
    >>> adapt_kl_coef(torch.tensor(0.5), torch.tensor(9.0), torch.tensor(50.0), target=6.0, horizon=100.0)
    tensor(0.5500)
    """
    error = (divergence / target - 1).clamp(-LARGEST_ERROR, LARGEST_ERROR)
    return coefficient * (1 + error * rows / horizon).clamp(min=0)


def kl_reward(reward: TokenFloat, logp: TokenFloat, ref_logp: TokenFloat, *, kl_reward_coef: float) -> TokenFloat:
    """r_t - kl_reward_coef * k1_t: every token pays for its distance from the reference.

    k1 is the one to use here. Summed over a row, its mean is the divergence of whole sequences; and the policy gradient
    of that sum is the gradient of that divergence. Source: Ziegler et al. 2019 (1909.08593).
    """
    return reward - kl_reward_coef * k1(logp, ref_logp)
