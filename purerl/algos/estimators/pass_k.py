"""Advantages for an expectation of the best of several: pass@k rewards a group for its best row, not for its mean.

Each is f(score, group, counted) -> [rows], as in `purerl.algos.estimators.group_relative`. In a group of one, and in a
group whose scores are all equal, every advantage is exactly 0.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.groups import group_max, group_size, group_sum
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["leave_one_out_max_advantage", "pass_k_advantage"]


def leave_one_out_max_advantage(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """What the best of a group would lose without row i: max_g - max of the others.

    So the best row gets its lead over the second, and the others 0; where two are best, all get 0. With k = N it is
    the unbiased gradient of the expected maximum, each row's baseline being what does not depend on it.
    Source: Tang et al. 2025 (2503.19595).

    >>> yes, group = torch.tensor([True, True, True]), torch.tensor([3, 3, 3])
    >>> leave_one_out_max_advantage(torch.tensor([1.0, 0.25, 0.0]), group, yes)
    tensor([0.7500, 0.0000, 0.0000])
    """
    known = torch.where(counted, score, -torch.inf)
    best = counted & (known == group_max(known, group))
    others = torch.where(best, -torch.inf, known)
    second = group_max(others, group)
    # Alone at the top, and not alone in the group.
    leads = best & (group_sum(best.to(score.dtype), group) == 1) & second.isfinite()
    return torch.where(leads, score - torch.where(second.isfinite(), second, 0), 0)


def pass_k_advantage(score: RowFloat, group: RowInt, counted: RowBool, *, k: int) -> RowFloat:
    """The mean advantage of a row over all sets of k rows of its group, each set rewarded with 1 if any row is right.

    With N rows in the group, n of them wrong (score not above 0), and C the binomial coefficient:

        w   = C(n, k) / C(N, k)                                    all of a set are wrong
        std = sqrt(w (1 - w))
        A   = w / std                                              of a right row: any set that it is in gets 1
        A   = (w - C(n - 1, k - 1) / C(N - 1, k - 1)) / std        of a wrong one

    Where no set, or every set, is all wrong, each A is 0: also in a group of fewer than k rows. The advantages of a
    group add up to 0. With k = 1 they are the scores, whitened. Source: Chen et al. 2025 (2508.10751, sec. 2.4).

    >>> yes, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 3, 3])
    >>> pass_k_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, yes, k=2)
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """
    wrong = counted & (score <= 0)
    size, failures = group_size(counted, group, dtype=score.dtype), group_sum(wrong.to(score.dtype), group)
    chance = _all_of(failures, size, k)
    std = (chance * (1 - chance)).sqrt()
    given = torch.where(wrong, _all_of(failures - 1, size - 1, k - 1), 0)
    return torch.where(counted & (std > 0), (chance - given) / torch.where(std > 0, std, 1), 0)


def _all_of(some: RowFloat, size: RowFloat, k: int) -> RowFloat:
    """C(some, k) / C(size, k), the chance that k of `size` are all among `some`: exactly 0 or 1 where it is that."""
    drawn = torch.arange(k, dtype=some.dtype, device=some.device)
    factors = (some.unsqueeze(-1) - drawn).clamp(min=0) / (size.unsqueeze(-1) - drawn).clamp(min=1)
    return factors.prod(-1)
