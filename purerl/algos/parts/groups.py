"""Statistics over the rows of a group.

A group is a set of rows that share a label. Labels are names: any int64 values, in any order, with any number of rows
each. There is no loop over groups and no ``unique``: rows are sorted by label, a cumulative sum numbers the groups, and
sums are scattered into as many buckets as there are rows. So shapes are static, and every function runs under
``torch.compile(fullgraph=True)`` and ``torch.func.vmap``.

Rows that are not `counted` take no part: they change nobody's statistics, and get 0.
"""

from __future__ import annotations

import torch

from purerl.types import RowBool, RowFloat, RowInt, TokenFloat

__all__ = [
    "buckets",
    "group_deviation",
    "group_max",
    "group_mean",
    "group_size",
    "group_sum",
    "group_token_max",
    "group_token_sum",
]


def buckets(group: RowInt) -> RowInt:
    """Number the groups 0, 1, 2, ... in the order of their labels.

    Shapes: [rows] -> [rows], values in [0, rows).

    >>> buckets(torch.tensor([7, -3, 7, 100]))
    tensor([1, 0, 1, 2])
    """
    order = group.argsort(-1)
    ordered = group.gather(-1, order)
    begins = ordered[..., 1:] != ordered[..., :-1]
    number = torch.nn.functional.pad(begins.long(), (1, 0)).cumsum(-1)
    return torch.zeros_like(group).scatter(-1, order, number)


def group_sum(x: RowFloat, group: RowInt) -> RowFloat:
    """For each row, the sum of `x` over the rows of its group.

    >>> group_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5, 9, 5]))
    tensor([5., 2., 5.])
    """
    bucket = buckets(group)
    return torch.zeros_like(x).scatter_add(-1, bucket, x).gather(-1, bucket)


def group_max(x: RowFloat, group: RowInt) -> RowFloat:
    """For each row, the largest `x` of its group.

    >>> group_max(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5, 9, 5]))
    tensor([4., 2., 4.])
    """
    bucket = buckets(group)
    return torch.full_like(x, -torch.inf).scatter_reduce(-1, bucket, x, "amax").gather(-1, bucket)


def group_token_sum(x: TokenFloat, group: RowInt) -> TokenFloat:
    """At each position of each row, the sum of `x` at that position over the rows of its group.

    >>> group_token_sum(torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), torch.tensor([5, 9, 5]))
    tensor([[ 5., 50.],
            [ 2., 20.],
            [ 5., 50.]])
    """
    bucket = buckets(group).unsqueeze(-1).expand_as(x)
    return torch.zeros_like(x).scatter_add(-2, bucket, x).gather(-2, bucket)


def group_token_max(x: TokenFloat, group: RowInt) -> TokenFloat:
    """At each position of each row, the largest `x` at that position of the rows of its group.

    >>> group_token_max(torch.tensor([[1.0, 40.0], [2.0, 20.0], [4.0, 10.0]]), torch.tensor([5, 9, 5]))
    tensor([[ 4., 40.],
            [ 2., 20.],
            [ 4., 40.]])
    """
    bucket = buckets(group).unsqueeze(-1).expand_as(x)
    return torch.full_like(x, -torch.inf).scatter_reduce(-2, bucket, x, "amax").gather(-2, bucket)


def group_size(counted: RowBool, group: RowInt, *, dtype: torch.dtype) -> RowFloat:
    """For each row, how many rows of its group are counted, at least 1: a number to divide by."""
    return group_sum(counted.to(dtype), group).clamp(min=1)


def group_mean(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """For each row, the mean score of the counted rows of its group; 0 where none is counted.

    >>> group_mean(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
    tensor([2., 2., 0.])
    """
    return group_sum(torch.where(counted, score, 0), group) / group_size(counted, group, dtype=score.dtype)


def group_deviation(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """How far each row's score lies from the mean of its group.

        s_i - mean_g = (s_i - max_g) - mean_g(s - max_g)

    The second form is the one that is computed. It is exactly 0 where all scores of a group are equal, whatever they
    are; the mean of three tenths is not exactly a tenth. Shapes: [rows] each, result [rows].

    >>> group_deviation(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([ 1., -1.,  0.])
    """
    highest = group_max(torch.where(counted, score, -torch.inf), group).detach()
    below = torch.where(counted, score - highest, 0)
    size = group_size(counted, group, dtype=score.dtype)
    return torch.where(counted, below - group_sum(below, group) / size, 0)
