"""Advantages of the steps of an agent, relative to other steps from the same state of the environment.

A step is a run of action tokens with the same `turn`. A reward on a token that is not an action belongs to the step
before it, as in `purerl.algos.parts.actions`. Steps are numbered 0, 1, 2, ... in each row. A row has at most as many
steps as positions, so values of steps have the shape [rows, time] too.
"""

from __future__ import annotations

import torch

from purerl.algos.estimators.group_relative import group_normalized_advantage
from purerl.algos.parts.actions import action_index, segment_sum
from purerl.algos.parts.groups import group_index
from purerl.kernels.masks import masked
from purerl.kernels.recurrence import reverse_recurrence
from purerl.types import RowInt, TokenBool, TokenFloat, TokenInt

__all__ = ["find_steps", "spread_progress", "step_relative_advantage"]


def find_steps(turn: TokenInt, action: TokenBool) -> tuple[TokenInt, TokenBool]:
    """Return the step that each token belongs to, and a mask of the first action token of each step.

    Shapes: [rows, time] each.

    >>> turn, action = torch.tensor([[0, 4, 4, 7, 9]]), torch.tensor([[False, True, True, False, True]])
    >>> find_steps(turn, action)
    (tensor([[0, 0, 0, 0, 1]]), tensor([[False,  True, False, False,  True]]))
    """
    index = action_index(action)
    turn_of_action = torch.zeros_like(turn).scatter_add(-1, index, masked(turn, action))
    is_change = torch.nn.functional.pad(turn_of_action[..., 1:] != turn_of_action[..., :-1], (1, 0), value=False)
    is_start = action & (is_change.gather(-1, index) | (index == 0))
    return is_change.cumsum(-1).gather(-1, index), is_start


def step_relative_advantage(
    reward: TokenFloat,
    turn: TokenInt,
    anchor: TokenInt,
    group: RowInt,
    action: TokenBool,
    mask: TokenBool,
    *,
    discount: float,
) -> TokenFloat:
    """Compute the step relative advantage of GiGPO: compare the steps of a group that start in the same state.

        R_ik = sum_{j >= k} discount^(j - k) reward_ij
        A_ik = (R_ik - mean(R)) / (std(R) + 1e-6)

    reward_ij is the sum of the rewards of step j of row i. The mean and the standard deviation are over the steps of
    the group with the same anchor. `anchor` is a label of the environment's state at the first token of each step, any
    int64. The standard deviation has the number of steps minus 1 as its divisor. The advantage is 0 in a state with one
    step. Steps without a counted token are not compared. Every counted token gets the advantage of its step, the others
    get 0.

    Shapes: `group` is [rows], the others are [rows, time]; `reward` in units of reward, `discount` per step.
    Source: GiGPO (2505.10978, sec. 4.2).
    """
    shape, (reward, turn, anchor) = reward.shape, torch.atleast_2d(reward, turn, anchor)
    action, mask = torch.atleast_2d(action, mask)
    step, is_start = find_steps(turn, action)
    returns = reverse_recurrence(segment_sum(reward, step), discount)
    state = torch.zeros_like(anchor).scatter_add(-1, step, torch.where(is_start, anchor, 0))
    counted = segment_sum(mask.to(reward.dtype), step) > 0
    # Groups and states are numbered first, so that the labels of their pairs do not overflow.
    number = group_index(state.flatten(-2)).unflatten(-1, state.shape[-2:])
    label = group_index(group).unsqueeze(-1) * (state.shape[-2] * state.shape[-1]) + number
    flat = group_normalized_advantage(returns.flatten(-2), label.flatten(-2), counted.flatten(-2))
    return masked(flat.unflatten(-1, mask.shape[-2:]).gather(-1, step), mask).reshape(shape)


def spread_progress(progress: TokenFloat, turn: TokenInt, action: TokenBool, *, decay: float) -> TokenFloat:
    """Spread the progress of each turn over this turn and those before it, as in turn credit.

        z_k = 1 + decay + ... + decay^(k - 1)
        c_k = p_k / z_k + decay c_(k+1)

    p_k is the sum of `progress` over the tokens of turn k = 1, 2, ... of the row. Its share at turn j <= k is
    proportional to decay^(k - j), and the shares add up to p_k. With `decay` = 0, c is p. Every action token gets the
    value of its turn, the others get 0. Shapes: [rows, time] each; `progress` in units of reward, `decay` per turn.
    Source: turn credit, as in prime-rl.

    >>> turn, action = torch.tensor([[0, 1, 1]]), torch.tensor([[True, True, True]])
    >>> spread_progress(torch.tensor([[1.0, 0.0, 3.0]]), turn, action, decay=0.5)
    tensor([[2., 2., 2.]])
    """
    step, _ = find_steps(turn, action)
    powers = decay ** torch.arange(progress.shape[-1], device=progress.device, dtype=progress.dtype)
    credit = reverse_recurrence(segment_sum(masked(progress, action), step) / powers.cumsum(-1), decay)
    return masked(credit.gather(-1, step), action)
