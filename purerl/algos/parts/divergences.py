"""Estimates of the KL divergence between a policy and a reference, at each token, from the sampled token alone.

With x = logp - ref_logp, in nats, for tokens that are sampled from the policy pi:

    name                 value            mean                       gradient of the mean, for a fixed prefix
    k1                   x                KL(pi || ref)              0: use it in the reward, never in the loss
    k2                   x^2 / 2          biased                     gradient of KL(pi || ref)
    k3                   exp(-x) + x - 1  KL(pi || ref), at least 0  gradient of KL(ref || pi)
    absolute_log_ratio   abs(x)           biased                     biased

Value and gradient can come from two estimates: `straight_through` of k3 and k2 has an unbiased value and the gradient
of KL(pi || ref).

If the policy has changed since the tokens were sampled, each token needs the weight r = exp(logp - old_logp). The
gradient depends on whether it flows through r:

    name            value      mean            gradient of the mean, for a fixed prefix
    importance_k3   r k3       KL(pi || ref)   gradient of KL(pi || ref)
    weighted_k3     sg(r) k3   KL(pi || ref)   gradient of KL(ref || pi)
    weighted_k2     sg(r) k2   biased          gradient of KL(pi || ref)

`on_policy_k3` is importance_k3 with r = exp(logp - sg(logp)), which is 1: it takes the rows as those of the current
policy, and needs no `old_logp`.

Log-probabilities are [rows, time], in nats. In k3 and in r, log-ratios are clamped to +-20: beyond that, values are
constant and gradients are 0. A log-probability of -inf is replaced as in `log_ratios`, so that x is finite, and 0 if
both are -inf.

Sources: Schulman, "Approximating KL divergence" (2020); DeepSeek-V3.2 (2512.02556) for r k3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from purerl.algos.parts.log_ratios import finite_logp, log_ratio
from purerl.algos.parts.surrogates import LOG_RATIO_BOUND, token_ratio
from purerl.types import TokenFloat

__all__ = [
    "absolute_log_ratio",
    "importance_k3",
    "k1",
    "k2",
    "k3",
    "kl_reward",
    "on_policy_k3",
    "straight_through",
    "weighted_k2",
    "weighted_k3",
]


def k1(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute the estimate k1 of KL(pi || ref).

        k1 = logp - ref_logp

    It is unbiased, can be negative, and has a mean gradient of 0. Shapes: [rows, time] each, in nats.
    Source: Schulman 2020.
    """
    return log_ratio(logp, ref_logp)


def k2(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute the estimate k2 of KL(pi || ref).

        k2 = (logp - ref_logp)^2 / 2

    The value is biased, the gradient is unbiased for KL(pi || ref). Shapes: [rows, time] each, in nats.
    Source: Schulman 2020.
    """
    return torch.nn.functional.mse_loss(finite_logp(logp), finite_logp(ref_logp), reduction="none") / 2


def k3(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute the estimate k3 of KL(pi || ref).

        x  = logp - ref_logp
        k3 = exp(-x) + x - 1

    The value is unbiased, never negative, and has a low variance. The gradient is unbiased for KL(ref || pi). x is
    clamped to +-20. Shapes: [rows, time] each, in nats. Source: Schulman 2020.

    >>> import torch
    >>> k3(torch.tensor([0.0, 0.0]), torch.tensor([0.0, -1.0])).round(decimals=4)
    tensor([0.0000, 0.3679])
    """
    x = log_ratio(logp, ref_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (-x).expm1() + x  # exp(-x) - 1 loses half of the digits if x is small, and can be negative


def absolute_log_ratio(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute abs(x), for comparison with older work: its value and its gradient are biased.

    Shapes: [rows, time] each, in nats.
    """
    return log_ratio(logp, ref_logp).abs()


def straight_through(value: TokenFloat, gradient: TokenFloat) -> TokenFloat:
    """Combine the value of one estimate with the gradient of another.

    Shapes: any; both have the same shape.

    >>> import torch
    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> y = straight_through(5 * x, x.square())
    >>> y.detach(), torch.autograd.grad(y.sum(), x)[0]
    (tensor([15.]), tensor([6.]))
    """
    return value.detach() + (gradient - gradient.detach())


def importance_k3(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute r k3 with r = exp(logp - old_logp), with gradient through r and k3.

    Value and gradient are unbiased for KL(pi || ref), also if the tokens were sampled from the old policy. Shapes:
    [rows, time] each, in nats. Source: DeepSeek-V3.2 (2512.02556).
    """
    return token_ratio(logp, old_logp) * k3(logp, ref_logp)


def on_policy_k3(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute r k3 with r = exp(logp - sg(logp)), with gradient through r and k3.

    The value is that of k3, because r is 1. The gradient is unbiased for KL(pi || ref) if the current policy sampled
    the tokens. Shapes: [rows, time] each, in nats. Source: Tang and Munos 2025 (2506.09477).

    >>> import torch
    >>> logp = torch.tensor([-1.0], requires_grad=True)
    >>> kl = on_policy_k3(logp, torch.tensor([-2.0]))
    >>> kl.detach() == k3(logp, torch.tensor([-2.0])), torch.autograd.grad(kl.sum(), logp)[0]
    (tensor([True]), tensor([1.]))
    """
    return importance_k3(logp, logp.detach(), ref_logp)


def weighted_k3(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute sg(r) k3 with r = exp(logp - old_logp), without gradient through r.

    The value is unbiased for KL(pi || ref), the gradient for KL(ref || pi). Shapes: [rows, time] each, in nats.
    """
    return token_ratio(logp, old_logp).detach() * k3(logp, ref_logp)


def weighted_k2(logp: TokenFloat, old_logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """Compute sg(r) k2 with r = exp(logp - old_logp), without gradient through r.

    The value is biased, the gradient is unbiased for KL(pi || ref). Shapes: [rows, time] each, in nats.
    """
    return token_ratio(logp, old_logp).detach() * k2(logp, ref_logp)


def kl_reward(
    reward: TokenFloat,
    logp: TokenFloat,
    ref_logp: TokenFloat,
    *,
    kl_reward_coef: float | torch.Tensor,
    estimate: Callable[[TokenFloat, TokenFloat], TokenFloat] = k1,
) -> TokenFloat:
    """Subtract a KL penalty from the reward at each token.

        u_t = reward_t - kl_reward_coef * estimate(logp_t, ref_logp_t)

    The mean of the sum of k1 over a row is the KL divergence of whole sequences, and the policy gradient of this sum is
    the gradient of that divergence. Shapes: [rows, time] each, `reward` in units of reward, the rest in nats.
    The coefficient is a number, or a tensor [rows, 1]. Source: Ziegler et al. 2019 (1909.08593).
    """
    return reward - kl_reward_coef * estimate(logp, ref_logp)
