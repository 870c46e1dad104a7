"""The value of a prompt under the best policy with a KL penalty, from rewards of completions."""

from __future__ import annotations

import math

import torch

from purerl.algos.parts.groups import group_log_softmax, group_size
from purerl.kernels.masks import masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["optimal_group_advantage", "optimal_value"]


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


def optimal_group_advantage(score: RowFloat, group: RowInt, counted: RowBool, *, beta: float) -> RowFloat:
    """Subtract the optimal value of the prompt, estimated from the scores of the row's own group.

        Z_g = (1 / N_g) sum_g exp(s_j / beta)
        A_i = s_i - beta log Z_g

    exp(A_i / beta) has the mean 1 over the group. A large `beta` brings A to the deviation from the mean, a small one
    to that from the maximum. Rows that are not counted, and groups of one row, get 0. Shapes: [rows] each, in units of
    reward. Source: OAPL, as in NeMo-RL.

    >>> counted, group = torch.tensor([True, True, True]), torch.tensor([3, 3, 5])
    >>> optimal_group_advantage(torch.tensor([2.0, 0.0, 7.0]), group, counted, beta=1.0)
    tensor([ 0.5662, -1.4338,  0.0000])
    """
    size = group_size(counted, group, dtype=score.dtype)
    return masked(beta * (group_log_softmax(score / beta, group, counted) + size.log()), counted)
