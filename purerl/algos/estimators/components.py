"""Rewards that consist of several: a row has k components, one for each of them.

`components` is [rows, k], in units of reward. `weights` has a number for each component; with none given each weighs 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.errors import ConfigError
from purerl.types import RowBool, RowFloat, RowInt

__all__ = ["component_normalized_advantage", "weighted_sum"]


def weighted_sum(components: Tensor, *, weights: tuple[float, ...]) -> RowFloat:
    """sum_k w_k c_ik: several rewards as one. Raises: ConfigError where `weights` are some, but not k.

    >>> weighted_sum(torch.tensor([[1.0, 4.0]]), weights=(1.0, 0.5))
    tensor([3.])
    """
    k = components.shape[-1]
    if len(weights) not in (0, k):
        raise ConfigError("weights", got=f"{len(weights)}: {weights}", need=f"{k}, one for each component, or none")
    each = torch.tensor(weights or (1.0,) * k, dtype=components.dtype, device=components.device)
    return (components * each).sum(-1)


def component_normalized_advantage(
    components: Tensor, group: RowInt, counted: RowBool, *, weights: tuple[float, ...]
) -> RowFloat:
    """sum_k w_k (c_ik - mean_g c_k) / (std_g c_k + 1e-6): `group_normalized_advantage` of each component, then the sum.

    So a component counts by its weight, not by its range; and rows with the same sum of different components differ.
    Source: GDPO (2601.05242).

    >>> yes, group = torch.tensor([True, True]), torch.tensor([3, 3])
    >>> component_normalized_advantage(torch.tensor([[1.0, 0.0], [0.0, 9.0]]), group, yes, weights=(2.0, 1.0))
    tensor([ 0.7071, -0.7071])
    """
    each = components.movedim(-1, 0)
    normalized = group_normalized_advantage(each, group.expand_as(each), counted.expand_as(each))
    return weighted_sum(normalized.movedim(0, -1), weights=weights)
