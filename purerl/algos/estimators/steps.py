"""Advantages of the steps of an agent: what it said in one turn, compared with other turns from the same state.

A step is a run of action tokens with the same `turn`; a reward on a token that is not the policy's belongs to the step
before it, as in `purerl.algos.parts.actions`. Steps are numbered 0, 1, 2, ... in each row, and there are at most as
many as positions: so what holds for steps has the shape [rows, time] too.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.actions import fold, places
from purerl.algos.parts.groups import buckets
from purerl.kernels.recurrence import reverse_recurrence
from purerl.types import RowInt, TokenBool, TokenFloat, TokenInt

__all__ = ["anchored_step_advantage", "steps_of"]


def steps_of(turn: TokenInt, action: TokenBool) -> tuple[TokenInt, TokenBool]:
    """The number of the step that each token belongs to, and which action tokens begin one.

    >>> turn, action = torch.tensor([[0, 4, 4, 7, 9]]), torch.tensor([[False, True, True, False, True]])
    >>> steps_of(turn, action)
    (tensor([[0, 0, 0, 0, 1]]), tensor([[False,  True, False, False,  True]]))
    """
    place = places(action)
    folded = torch.zeros_like(turn).scatter_add(-1, place, torch.where(action, turn, 0))
    changes = pad(folded[..., 1:] != folded[..., :-1], (1, 0), value=False)
    begins = action & (changes.gather(-1, place) | (place == 0))
    return changes.cumsum(-1).gather(-1, place), begins


def anchored_step_advantage(
    reward: TokenFloat,
    turn: TokenInt,
    anchor: TokenInt,
    group: RowInt,
    action: TokenBool,
    mask: TokenBool,
    *,
    discount: float,
) -> TokenFloat:
    """How much better the step of each token went than the group's steps from the same state.

        R_ik = sum_{j >= k} discount^(j - k) (reward of step j)
        A_ik = (R_ik - mean) / (std + 1e-6)           over the steps of the group with the anchor of step k

    `anchor` names the state that the environment is in, at the first token of each step; any int64 values. The standard
    deviation divides by the number of steps less 1; a state that is met only once gives 0. Steps in which nothing
    counts are not compared. Source: GiGPO (2505.10978, sec. 4.2).
    """
    step, begins = steps_of(turn, action)
    returns = reverse_recurrence(fold(reward, step), discount)
    state = torch.zeros_like(anchor).scatter_add(-1, step, torch.where(begins, anchor, 0))
    counted = fold(mask.to(reward.dtype), step) > 0
    pair = _pairs(group, state)
    flat = group_normalized_advantage(returns.flatten(-2), pair.flatten(-2), counted.flatten(-2))
    return torch.where(mask, flat.unflatten(-1, mask.shape[-2:]).gather(-1, step), 0)


def _pairs(group: RowInt, state: TokenInt) -> TokenInt:
    """A label for each pair of a row's group and a step's state. Both are numbered first, lest labels overflow."""
    number = buckets(state.flatten(-2)).unflatten(-1, state.shape[-2:])
    return buckets(group).unsqueeze(-1) * (state.shape[-2] * state.shape[-1]) + number
