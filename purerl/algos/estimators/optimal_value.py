"""The value of a prompt under the best policy, from rewards of completions of a reference model."""

from __future__ import annotations

import math

import torch

__all__ = ["optimal_value"]


def optimal_value(reward: torch.Tensor, *, beta: float) -> torch.Tensor:
    """Estimate the optimal value of a prompt from rewards of n completions that the reference model has sampled.

        V = beta log((1 / n) sum_k exp(reward_k / beta))

    If the completions are all there are, with equal probabilities, V is the largest value of the expected reward minus
    beta KL(policy || reference), over all policies. V is between the mean and the maximum of the rewards: a large beta
    brings it near the mean, a small one near the maximum. Any leading axes, then n: [..., n] -> [...]. In units of
    reward. It is finite for finite rewards, also if reward / beta is large. For n = 1 it is the reward.
    Source: A*-PO (2505.20686).

    >>> optimal_value(torch.tensor([[1.0, 1.0], [0.0, 2.0]]), beta=1.0)
    tensor([1.0000, 1.4338])
    """
    return beta * (torch.logsumexp(reward / beta, -1) - math.log(reward.shape[-1]))
