"""Estimates of the divergence of a policy from a reference, at each token, from the sampled token alone.

With x = logp - ref_logp, in nats, and tokens sampled from the policy:

        value               its mean                    gradient of its mean, prefix fixed
    k1  x                   KL(pi || ref)               0: use it in the reward, never as a loss
    k2  x^2 / 2             biased                      that of KL(pi || ref)
    k3  exp(-x) + x - 1     KL(pi || ref), never < 0    that of KL(ref || pi)

Source: Schulman, "Approximating KL divergence" (2020). In `k3` x is clamped to +-20, value and gradient.
"""

from __future__ import annotations

from purerl.algos.parts.surrogates import LOG_RATIO_BOUND
from purerl.types import TokenFloat

__all__ = ["k1", "k2", "k3", "kl_reward"]


def k1(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """x: unbiased, of either sign, without a gradient in the mean."""
    return logp - ref_logp


def k2(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """x^2 / 2: biased, but its gradient is unbiased for KL(pi || ref)."""
    return (logp - ref_logp).square() / 2


def k3(logp: TokenFloat, ref_logp: TokenFloat) -> TokenFloat:
    """exp(-x) + x - 1: unbiased, of low variance, never negative.

    >>> import torch
    >>> k3(torch.tensor([0.0, 0.0]), torch.tensor([0.0, -1.0])).round(decimals=4)
    tensor([0.0000, 0.3679])
    """
    x = (logp - ref_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (-x).exp() + x - 1


def kl_reward(reward: TokenFloat, logp: TokenFloat, ref_logp: TokenFloat, *, kl_reward_coef: float) -> TokenFloat:
    """r_t - kl_reward_coef * k1_t: every token pays for its distance from the reference.

    k1 is the one to use here. Summed over a row, its mean is the divergence of whole sequences; and the policy gradient
    of that sum is the gradient of that divergence. Source: Ziegler et al. 2019 (1909.08593).
    """
    return reward - kl_reward_coef * k1(logp, ref_logp)
