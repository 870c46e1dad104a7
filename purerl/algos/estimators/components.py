"""Advantages for rewards with several components.

`components` is [rows, k], in units of reward: the reward of each row from each of k reward functions, or NaN if a
function does not apply to the row. `weights` has one number per component. If it is empty, every component has the
weight 1.
"""

from __future__ import annotations

import torch

from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.errors import ConfigError
from purerl.kernels.masks import as_mask
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["component_normalized_advantage", "weighted_sum"]


def weighted_sum(components: torch.Tensor, *, weights: tuple[float, ...]) -> RowFloat:
    """Compute the weighted sum of the components of each row.

        s_i = sum_k w_k c_ik

    A component that does not apply to the row is left out. Shapes: `components` is [rows, k]; the result is [rows].
    Raises: ConfigError if `weights` is not empty and does not have k entries.

    >>> weighted_sum(torch.tensor([[1.0, 4.0]]), weights=(1.0, 0.5))
    tensor([3.])
    """
    k = components.shape[-1]
    if weights and len(weights) != k:
        need, do = (
            f"{k}, one for each component, or none",
            "give each reward component a weight, or leave weights empty",
        )
        raise ConfigError("weights", got=f"{len(weights)}: {weights}", need=need, do=do)
    like = {"dtype": components.dtype, "device": components.device}
    factors = [torch.as_tensor(weight, **like) for weight in weights or (1.0,)]
    return (components.nan_to_num() * torch.stack(factors)).sum(-1)


def component_normalized_advantage(
    components: torch.Tensor, group: RowInt, counted: RowBool, *, weights: tuple[float, ...]
) -> RowFloat:
    """Compute the advantage of GDPO: normalize each component within its group, then take the weighted sum.

        A_i = sum_k w_k (c_ik - mean_g(c_k)) / (std_g(c_k) + 1e-6)

    The effect of a component depends on its weight, not on its range. Rows whose components differ get different
    advantages even if the sums are equal. In a group of one row the advantage is 0. The mean and the standard deviation
    of a component are over the rows that it applies to, as in TRL; in all other rows it adds 0. Shapes: `components` is
    [rows, k], the others and the result are [rows]. Raises: ConfigError as `weighted_sum`. Source: GDPO (2601.05242).

    >>> counted, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> component_normalized_advantage(torch.tensor([[1.0, 0.0], [0.0, 9.0]]), group, counted, weights=(2.0, 1.0))
    tensor([ 0.7071, -0.7071])
    """
    by_component = components.movedim(-1, 0)
    applies = as_mask(counted) & ~by_component.isnan()
    normalized = group_normalized_advantage(by_component.nan_to_num(), group.expand_as(by_component), applies)
    return weighted_sum(normalized.movedim(0, -1), weights=weights)
