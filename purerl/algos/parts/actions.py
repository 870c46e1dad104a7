"""The policy's own tokens, without what lies between them.

A row may hold tool output, other speakers and padding between its action tokens. None of it takes part in a recurrence:
the token after the last one before a tool call is the first one after it. So recurrences run on the *folded* row, in
which the action tokens come first, in their order, and the rest is 0. Shapes stay static.
"""

from __future__ import annotations

import torch

from purerl.types import TokenBool, TokenFloat, TokenInt

__all__ = ["fold", "fold_reward", "places", "unfold"]


def places(action: TokenBool) -> TokenInt:
    """Where each token goes when its row is folded: 0, 1, 2, ... for action tokens.

    Another token shares the place of the action token before it; one before any action token shares that of the first.

    >>> places(torch.tensor([[False, True, False, True]]))
    tensor([[0, 0, 0, 1]])
    """
    return action.cumsum(-1).sub_(1).clamp_(min=0)


def fold(x: TokenFloat, place: TokenInt) -> TokenFloat:
    """At each place, the sum of what goes there.

    >>> fold(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[0, 0, 0, 1]]))
    tensor([[7., 8., 0., 0.]])
    """
    return torch.zeros_like(x).scatter_add(-1, place, x)


def unfold(x: TokenFloat, place: TokenInt, action: TokenBool) -> TokenFloat:
    """At each action token, what is at its place; 0 at other tokens.

    >>> unfold(torch.tensor([[7.0, 8.0, 0.0]]), torch.tensor([[0, 0, 1]]), torch.tensor([[True, False, True]]))
    tensor([[7., 0., 8.]])
    """
    return torch.where(action, x.gather(-1, place), 0)


def fold_reward(reward: TokenFloat, action: TokenBool) -> TokenFloat:
    """The rewards with all of them on action tokens, in the row as it was.

    A reward on a token that is not the policy's, as an environment gives for a tool call, goes to the action token
    before it; one before any action token goes to the first. So the sum of a row is kept. A row without action tokens
    has nobody to reward, and gets 0.

    >>> fold_reward(torch.tensor([[1.0, 2.0, 4.0, 8.0]]), torch.tensor([[False, True, False, True]]))
    tensor([[0., 7., 0., 8.]])
    """
    place = places(action)
    return unfold(fold(reward, place), place, action)
