"""Statistics over the rows of a group.

A group is the set of rows with the same label, usually the completions of one prompt. Labels are names: any int64
values, in any order, with any number of rows each. There is no Python loop over groups and no ``unique``. Rows are
sorted by label, a cumulative sum numbers the groups, and values are scattered into as many bins as there are rows.
Shapes are therefore static, and every function works with ``torch.compile(fullgraph=True)`` and ``torch.func.vmap``.

Rows that are not `counted` do not change any statistic, and get 0.
"""

from __future__ import annotations

import torch

from purerl.algos.parts.elementwise import square_root
from purerl.kernels.masks import any_true, as_mask, count_true, masked
from purerl.types import RowBool, RowFloat, RowInt, TokenBool, TokenFloat

__all__ = [
    "group_deviation",
    "group_index",
    "group_log_softmax",
    "group_max",
    "group_mean",
    "group_size",
    "group_std",
    "group_std_of_others",
    "group_sum",
    "group_token_max",
    "group_token_sum",
    "prompt_weight",
]


def group_index(group: RowInt) -> RowInt:
    """Number the groups 0, 1, 2, ... in the order of their labels, and return the number of each row's group.

    Shapes: [rows] -> [rows], values in [0, rows).

    >>> group_index(torch.tensor([7, -3, 7, 100]))
    tensor([1, 0, 1, 2])
    """
    label = torch.atleast_1d(group)
    order = label.argsort(-1)
    ordered = label.gather(-1, order)
    is_first = ordered[..., 1:] != ordered[..., :-1]
    number = torch.nn.functional.pad(is_first.long(), (1, 0)).cumsum(-1)
    return torch.zeros_like(order).scatter(-1, order, number).reshape(group.shape)


def group_sum(x: RowFloat, group: RowInt) -> RowFloat:
    """Sum `x` over the rows of each group. Every row gets the sum of its group. Shapes: [rows] each.

    >>> group_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5, 9, 5]))
    tensor([5., 2., 5.])
    """
    index = group_index(group)
    return torch.zeros_like(x).scatter_add(-1, index, x).gather(-1, index)


def group_max(x: RowFloat, group: RowInt) -> RowFloat:
    """Compute the maximum of `x` over the rows of each group. Every row gets the maximum of its group.

    Shapes: [rows] each.

    >>> group_max(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([5, 9, 5]))
    tensor([4., 2., 4.])
    """
    index = group_index(group)
    return torch.full_like(x, -torch.inf).scatter_reduce(-1, index, x, "amax").gather(-1, index)


def group_token_sum(x: TokenFloat, group: RowInt) -> TokenFloat:
    """Sum `x` over the rows of each group, separately at each position.

    Shapes: `x` is [rows, time], `group` is [rows]; the result is [rows, time].

    >>> group_token_sum(torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]), torch.tensor([5, 9, 5]))
    tensor([[ 5., 50.],
            [ 2., 20.],
            [ 5., 50.]])
    """
    rows = torch.atleast_2d(x)
    index = group_index(group).unsqueeze(-1).expand_as(rows)
    return torch.zeros_like(rows).scatter_add(-2, index, rows).gather(-2, index).reshape(x.shape)


def group_token_max(x: TokenFloat, group: RowInt) -> TokenFloat:
    """Compute the maximum of `x` over the rows of each group, separately at each position.

    Shapes: `x` is [rows, time], `group` is [rows]; the result is [rows, time].

    >>> group_token_max(torch.tensor([[1.0, 40.0], [2.0, 20.0], [4.0, 10.0]]), torch.tensor([5, 9, 5]))
    tensor([[ 4., 40.],
            [ 2., 20.],
            [ 4., 40.]])
    """
    rows = torch.atleast_2d(x)
    index = group_index(group).unsqueeze(-1).expand_as(rows)
    highest = torch.full_like(rows, -torch.inf).scatter_reduce(-2, index, rows, "amax")
    return highest.gather(-2, index).reshape(x.shape)


def group_size(counted: RowBool, group: RowInt, *, dtype: torch.dtype) -> RowFloat:
    """Count the counted rows of each group. Every row gets the count of its group, at least 1, to divide by.

    Shapes: [rows] each.
    """
    return group_sum(as_mask(counted).to(dtype), group).clamp(min=1)


def group_mean(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Compute the mean score over the counted rows of each group. Every row gets the mean of its group.

    The mean is 0 if no row of the group is counted. Shapes: [rows] each.

    >>> group_mean(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, False]))
    tensor([2., 2., 0.])
    """
    return group_sum(masked(score, counted), group) / group_size(counted, group, dtype=score.dtype)


def group_deviation(score: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Compute the deviation of each row's score from the mean of its group.

        s_i - mean_g(s) = (s_i - max_g(s)) - mean_g(s - max_g(s))

    The second form is computed. It is exactly 0 if all scores of a group are equal. The first form is not: the mean of
    three times 0.1 is not exactly 0.1. Rows that are not counted get 0. Shapes: [rows] each.

    >>> group_deviation(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([0, 0, 1]), torch.tensor([True, True, True]))
    tensor([ 1., -1.,  0.])
    """
    highest = group_max(masked(score, counted, -torch.inf), group).detach()
    below = masked(score - highest, counted)
    size = group_size(counted, group, dtype=score.dtype)
    return masked(below - group_sum(below, group) / size, counted)


def group_log_softmax(x: RowFloat, group: RowInt, counted: RowBool) -> RowFloat:
    """Compute the logarithm of the softmax of `x` over the counted rows of each group.

        y_i = x_i - log sum_g exp(x_j)

    Rows that are not counted get 0. Shapes: [rows] each.

    >>> counted, group = torch.tensor([True, True, False]), torch.tensor([3, 3, 3])
    >>> group_log_softmax(torch.tensor([3.0, 1.0, 9.0]).log(), group, counted).exp()
    tensor([0.7500, 0.2500, 1.0000])
    """
    highest = group_max(masked(x, counted, -torch.inf), group).detach()
    below = masked(x - highest, counted)
    total = group_sum(masked(below.exp(), counted), group)
    # The largest row has exp(0), so that clamping changes only groups without a counted row.
    return masked(below - total.clamp(min=1).log(), counted)


def group_std(score: RowFloat, group: RowInt, counted: RowBool, *, ddof: int) -> RowFloat:
    """Compute the standard deviation of the scores of each group, with divisor N_g - ddof.

    It is exactly 0 if all scores of a group are equal, or if fewer than two rows are counted. Shapes: [rows] each.

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 3, 3])
    >>> group_std(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, counted, ddof=1)
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    squares = group_sum(group_deviation(score, group, counted).square(), group)
    return square_root(squares / (group_size(counted, group, dtype=score.dtype) - ddof).clamp(min=1))


def group_std_of_others(score: RowFloat, group: RowInt, counted: RowBool, *, ddof: int) -> RowFloat:
    """Compute, for each row, the standard deviation of the scores of the other rows of its group.

        SS_i    = sum_g (s_j - mean_g)^2 - N_g / (N_g - 1) (s_i - mean_g)^2
        sigma_i = sqrt(SS_i / (N_g - 1 - ddof))

    SS_i is the sum of the squared deviations of the other rows from their own mean. It is set to 0 if it is at most
    1e-6 of the sum over all rows of the group: that much is rounding error. Shapes: [rows] each.

    >>> counted, group = torch.tensor([True, True, True, True]), torch.tensor([3, 3, 3, 3])
    >>> group_std_of_others(torch.tensor([1.0, 0.0, 0.0, 0.0]), group, counted, ddof=1)
    tensor([0.0000, 0.5774, 0.5774, 0.5774])
    """
    size, square = group_size(counted, group, dtype=score.dtype), group_deviation(score, group, counted).square()
    total = group_sum(square, group)
    others = total - square * size / (size - 1).clamp(min=1)
    return square_root(torch.where(others > 1e-6 * total, others, 0) / (size - 1 - ddof).clamp(min=1))


def prompt_weight(group: RowInt, mask: TokenBool) -> RowFloat:
    """Compute the factors with which `token_mean` of a whole step is the mean over prompts of the mean over tokens.

        w_i = tokens / (prompts * n_g)    for row i of prompt g

    (1 / tokens) sum_it w_i l_it = (1 / prompts) sum_g (1 / n_g) sum_(i in g) sum_t l_it, with n_g counted tokens in the
    rows of prompt g. `prompts` is the number of prompts with a counted token; rows of other prompts get 0.
    Shapes: `group` is [rows], `mask` is [rows, time]; the result is [rows], float64.
    Source: the objective of DAPO (2503.14476). The authors' code computes `token_mean`.

    >>> mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    >>> prompt_weight(torch.tensor([5, 5, 9]), mask)
    tensor([0.7500, 0.7500, 1.5000], dtype=torch.float64)
    """
    counted, tokens = any_true(mask).double(), count_true(mask).double()
    prompts = (counted / group_sum(counted, group).clamp(min=1)).sum(-1, keepdim=True)
    return counted * tokens.sum(-1, keepdim=True) / (prompts * group_sum(tokens, group)).clamp(min=1)
