"""Advantages for pass@k objectives, which reward the best of several rows of a group.

Each is a function f(score, group, counted) -> [rows], as in `purerl.algos.estimators.group_relative`. In a group of one
row, and in a group with equal scores, every advantage is exactly 0.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.groups import group_max, group_size, group_sum
from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["leave_one_out_max_advantage", "pass_k_advantage"]


def leave_one_out_max_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Subtract from the best score of the group the best score without row i.

        A_i = max_g(s) - M_i

    M_i is the best score of the other rows. The best row gets its lead over the second best, all other rows get 0. If
    two rows tie for the best, all rows get 0. This is an unbiased policy gradient of the expected maximum over k = N_g
    rows, because the baseline of a row does not depend on that row. Shapes: [rows] each, in units of reward.
    Source: Tang et al. 2025 (2503.19595).

    >>> counted, group = torch.tensor([True, True, True]), torch.tensor([3, 3, 3])
    >>> leave_one_out_max_advantage(torch.tensor([1.0, 0.25, 0.0]), group, counted)
    tensor([0.7500, 0.0000, 0.0000])
    """
    counted_score = masked(score, counted, -torch.inf)
    is_best = counted & (counted_score == group_max(counted_score, group))
    second = group_max(torch.where(is_best, -torch.inf, counted_score), group)
    # One row is the best, and it is not the only row of its group.
    is_leader = is_best & (group_sum(is_best.to(score.dtype), group) == 1) & second.isfinite()
    return torch.where(is_leader, score - torch.where(second.isfinite(), second, 0), 0)


def pass_k_advantage(score: RowFloat, group: RowInt, counted: RowBool, *, k: int) -> RowFloat:
    """Compute the analytic pass@k advantage: the mean advantage of a row over all sets of k rows of its group.

    A set has the reward 1 if any of its rows is correct (score > 0), else 0. With N counted rows in the group, n of
    them incorrect, and C the binomial coefficient:

        w   = C(n, k) / C(N, k)
        A_i = w / sqrt(w (1 - w))                                              if row i is correct
              (w - C(n - 1, k - 1) / C(N - 1, k - 1)) / sqrt(w (1 - w))        else

    w is the probability that all rows of a set are incorrect. If w is 0 or 1, every advantage is 0. This includes a
    group with fewer than k rows. The advantages of a group add up to 0. With k = 1 they are the whitened scores.
    Shapes: [rows] each. Source: Chen et al. 2025 (2508.10751, sec. 2.4).

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 3, 3])
    >>> pass_k_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, counted, k=2)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    is_incorrect = as_mask(counted) & (score <= 0)
    size, incorrect = group_size(counted, group, dtype=score.dtype), group_sum(is_incorrect.to(score.dtype), group)
    fail_rate = _all_from_subset(incorrect, size, k)
    std = (fail_rate * (1 - fail_rate)).sqrt()
    row_fail_rate = torch.where(is_incorrect, _all_from_subset(incorrect - 1, size - 1, k - 1), 0)
    return torch.where(counted & (std > 0), (fail_rate - row_fail_rate) / torch.where(std > 0, std, 1), 0)


def _all_from_subset(subset: RowFloat, size: RowFloat, k: int) -> RowFloat:
    """Compute C(subset, k) / C(size, k): the probability that k of `size` items are all from a subset.

    It is exactly 0 or 1 if the probability is 0 or 1.
    """
    drawn = torch.arange(k, dtype=subset.dtype, device=subset.device)
    factors = (subset.unsqueeze(-1) - drawn).clamp(min=0) / (size.unsqueeze(-1) - drawn).clamp(min=1)
    return factors.prod(-1)
