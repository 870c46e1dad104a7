"""Compaction of a row to its action tokens, for recurrences over time.

A row may hold tool output, messages of other speakers and padding between its action tokens. A recurrence skips all of
these: after the last action token before a tool call, the next step is the first action token after it. Recurrences
therefore run on a compacted row: the action tokens come first, in their order, and the remaining positions are 0. The
shape [rows, time] stays the same.
"""

from __future__ import annotations

import torch

from purerl.kernels.masks import as_mask, masked
from purerl.types import TokenBool, TokenFloat, TokenInt

__all__ = ["action_index", "gather_to_actions", "move_rewards_to_actions", "segment_sum"]


def action_index(action: TokenBool) -> TokenInt:
    """Return the position of each token in the compacted row: 0, 1, 2, ... for action tokens.

    Any other token gets the index of the action token before it. A token before the first action token gets 0. Shapes:
    [rows, time] -> [rows, time].

    >>> action_index(torch.tensor([[False, True, False, True]]))
    tensor([[0, 0, 0, 1]])
    """
    return (as_mask(action).cumsum(-1) - 1).clamp(min=0)


def segment_sum(x: TokenFloat, index: TokenInt) -> TokenFloat:
    """Sum, in each row, the values of `x` that have the same index. The sum is at the position that the index names.

    Shapes: [rows, time] each. The result is 0 at positions that no index names.

    >>> segment_sum(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[0, 0, 0, 1]]))
    tensor([[7., 8., 0., 0.]])
    """
    return torch.zeros_like(x).scatter_add(-1, index, x)


def gather_to_actions(x: TokenFloat, index: TokenInt, action: TokenBool) -> TokenFloat:
    """Write the values of a compacted row back to its action tokens. The result is 0 at other tokens.

    Shapes: [rows, time] each.

    >>> action = torch.tensor([[True, False, True]])
    >>> gather_to_actions(torch.tensor([[7.0, 8.0, 0.0]]), action_index(action), action)
    tensor([[7., 0., 8.]])
    """
    return masked(x.gather(-1, index), action)


def move_rewards_to_actions(reward: TokenFloat, action: TokenBool) -> TokenFloat:
    """Move every reward to an action token, without compacting the row.

    A reward on a token that is not an action, for example of an environment for a tool call, is added to the action
    token before it. A reward before the first action token is added to the first. The sum of a row does not change,
    except in a row without action tokens: its rewards become 0.

    Shapes: [rows, time] each.

    >>> move_rewards_to_actions(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[False, True, False, True]]))
    tensor([[0., 7., 0., 8.]])
    """
    index = action_index(action)
    return gather_to_actions(segment_sum(reward, index), index, action)
