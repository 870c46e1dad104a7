"""Advantages that share out the positive rewards of a group by a ranking of its rows."""

from __future__ import annotations

import torch

from purerl.algos.estimators.group_relative import group_centered_advantage
from purerl.algos.parts.groups import group_deviation, group_max, group_sum
from purerl.kernels.masks import as_mask, masked
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["ranked_advantage", "win_rate", "with_hacks_at_minimum"]


def with_hacks_at_minimum(score: RowFloat, is_hack: RowBool, group: RowInt, counted: RowBool) -> RowFloat:
    """Replace the score of each row that is a hack by the lowest score of its group.

    Shapes: [rows] each. Source: GAR, as in MiMo-V2.6.

    >>> counted, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> with_hacks_at_minimum(torch.tensor([1.0, 0.25]), torch.tensor([True, False]), group, counted)
    tensor([0.2500, 0.2500])
    """
    lowest = -group_max(masked(-score, counted, -torch.inf), group)
    return torch.where(as_mask(is_hack) & counted, lowest, score)


def win_rate(ranking: RowFloat, group: RowInt, compared: RowBool) -> RowFloat:
    """Compute the share of the other compared rows of the group that a row is ranked above. A tie counts as half.

        w_i = (1 / (n - 1)) sum_j (1 + sign(ranking_i - ranking_j)) / 2

    n is the number of compared rows of the group; j are those without i. A row that is compared alone gets 1, a row
    that is not compared 1/2. NaN is a row without a ranking, which is not compared. The function needs rows^2 bytes of
    memory. Shapes: [rows] each. Source: GAR, as in MiMo-V2.6.

    >>> compared, group = torch.tensor([True, True, True, False]), torch.tensor([3, 3, 3, 3])
    >>> win_rate(torch.tensor([9.0, 1.0, 1.0, 5.0]), group, compared)
    tensor([1.0000, 0.2500, 0.2500, 0.5000])
    """
    shape, (ranking, group, compared) = ranking.shape, torch.atleast_1d(ranking, group, as_mask(compared))
    compared = compared & ~ranking.isnan()
    row, rival = ranking.unsqueeze(-1), ranking.unsqueeze(-2)
    is_pair = (group.unsqueeze(-1) == group.unsqueeze(-2)) & compared.unsqueeze(-1) & compared.unsqueeze(-2)
    others = is_pair.sum(-1) - 1
    points = ((is_pair & (row > rival)).sum(-1) + (is_pair & (row >= rival)).sum(-1) - 1).to(ranking.dtype) / 2
    rate = torch.where(others > 0, points / others.clamp(min=1), 1)
    return torch.where(compared, rate, 0.5).reshape(shape)


def ranked_advantage(
    score: RowFloat, ranking: RowFloat, group: RowInt, counted: RowBool, *, min_factor: float, max_scale: float
) -> RowFloat:
    """Subtract the mean score of the group, and share the positive advantages out by a ranking, as in GAR.

        A_i = s_i - mean_g
        f_i = min_factor + (1 - min_factor) w_i
        c_g = min(sum_g A_j / sum_g f_j A_j, max_scale)
        B_i = c_g f_i A_i    if A_i > 0
              A_i            else

    w is `win_rate` among the rows with A > 0; the sums are over these rows. The result is B minus its mean over the
    group, which is 0 unless the cap binds. `ranking` is a score of each row, NaN if it has none. Without any ranking,
    every row has the same factor, and the result is A. Shapes: [rows] each, `score` in units of reward.
    Source: GAR, as in MiMo-V2.6.

    >>> counted, group, score = torch.ones(3) > 0, torch.tensor([3, 3, 3]), torch.tensor([1.0, 1.0, 0.0])
    >>> ranked_advantage(score, torch.tensor([2.0, 1.0, 5.0]), group, counted, min_factor=0.5, max_scale=2.0)
    tensor([ 0.4444,  0.2222, -0.6667])
    """
    advantage = group_centered_advantage(score, group, counted)
    is_positive = as_mask(counted) & (advantage > 0)
    factor = min_factor + (1 - min_factor) * win_rate(ranking, group, is_positive)
    positive = masked(advantage, is_positive)
    weighted = group_sum(factor * positive, group)
    scale = (group_sum(positive, group) / torch.where(weighted > 0, weighted, 1)).clamp(max=max_scale)
    return group_deviation(torch.where(is_positive, scale * factor * advantage, advantage), group, counted)
