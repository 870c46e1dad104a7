"""The experts that tokens go through: recorded in one pass of the trainer, and used again in another.

What is replayed is defined in `purerl.backends.hf.moe.replay`: the discrete choice only. The weights of the experts are
those of the live router, and gradients reach it. A token with `LIVE` goes through the experts of the live router.

Megatron hands the argument ``padding_mask`` on from the model to its layers, also when they are computed again in the
backward pass, and no other one that has a value for each token. Here it is the number of each token in the pass:

    number > 0    an action token is predicted from the token
    number < 0    none is; the token has the number -number
    number = 0    padding

So a router finds the record of its tokens, whatever micro-batch its layer is in. A rank has the records of the routers
of its stage. Each context rank, and with sequence parallelism each tensor rank, records its own positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field
from tensordict import TensorDict
from torch import Tensor
from torch import distributed as dist

from purerl.backends.hf.moe.replay import DTYPE, LIVE, top_k
from purerl.batch import with_fields
from purerl.kernels.partition import tokens_needed
from purerl.types import TokenBool

__all__ = ["NUMBER", "Choices", "number_tokens"]

NUMBER = "number"
"""The field of rows with the number of each token that is read, [rows, time]."""


def number_tokens(parts: Sequence[TensorDict], actions: Sequence[TokenBool]) -> list[TensorDict]:
    """`parts`, the rows of micro-batches, with the numbers of the tokens that are read.

    actions  of each part, the token after each one whose hidden state is read

    >>> action = torch.tensor([[False, True, True, False], [False, True, False, False]])
    >>> rows = TensorDict({"action": action}, [2])
    >>> [part[NUMBER].tolist() for part in number_tokens([rows, rows[:1]], [action, action[:1]])]
    [[[1, 2], [3, -4]], [[5, 6]]]
    """
    result, first = list[TensorDict](), 1
    for rows, action in zip(parts, actions, strict=True):
        width = max(1, int(tokens_needed(action).max())) if len(rows) else 1
        number = torch.arange(first, first + len(rows) * width, device=action.device).view(len(rows), width)
        result.append(with_fields(rows, **{NUMBER: torch.where(action.roll(-1, -1)[:, :width], number, -number)}))
        first += number.numel()
    return result


@define(eq=False)
class Choices:
    """The experts of the tokens of one pass, for the routers of this stage.

    routers   their number
    k         experts of a token
    replayed  [1 + tokens, routers, k] the experts to use; None: the live choices
    recorded  int32 [1 + tokens, routers, k] the live choices, counted from 1; None: they are not recorded
    changed   int64 [2], in passes with a gradient: tokens and routers whose live choice is another one than the
              replayed one, in any order, and all of them, among the tokens from which action tokens are predicted
    """

    routers: int
    k: int
    replayed: Tensor | None = None
    recorded: Any = None
    changed: Tensor = field(factory=lambda: torch.zeros(2, dtype=torch.int64))

    def record(self, parts: Sequence[TensorDict], device: torch.device) -> None:
        """Record the choices for the tokens of `parts` from now on."""
        tokens = sum(part[NUMBER].numel() for part in parts)
        self.recorded = torch.zeros(1 + tokens, self.routers, self.k, dtype=torch.int32, device=device)

    def records(self, parts: Sequence[TensorDict], group: dist.ProcessGroup) -> list[Tensor]:
        """[rows, time, routers, k] for each of `parts`, what the ranks of `group` have recorded, which ends."""
        recorded, self.recorded = self.recorded, None
        if group.size() > 1:
            dist.all_reduce(recorded, group=group)
        of_parts = (recorded[1:] + LIVE).split([part[NUMBER].numel() for part in parts])
        return [flat.unflatten(0, part[NUMBER].shape) for flat, part in zip(of_parts, parts, strict=True)]

    def replay(self, routes: Sequence[Tensor], device: torch.device) -> None:
        """Use the experts `routes` [rows, time, routers, k], of each micro-batch, from now on."""
        padding = torch.full((1, self.routers, self.k), LIVE, dtype=DTYPE, device=device)
        self.replayed = torch.cat([padding, *(of_part.flatten(0, 1) for of_part in routes)])
        self.changed = torch.zeros(2, dtype=torch.int64, device=device)

    def stop(self) -> None:
        """Use the live choices again."""
        self.replayed = None

    def choose(self, router: int, number: Tensor, scores: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """The scores and the experts [n, k] to use, of n tokens with the `scores` [n, experts] of `router`."""
        if self.recorded is not None:
            self.recorded[number.abs(), router] = (live - LIVE).to(self.recorded)
        if self.replayed is None:
            return scores.gather(-1, live), live
        replayed = self.replayed[number.abs(), router]
        # Recomputed layers run twice, of which only the second run has gradients.
        if torch.is_grad_enabled():
            reads = (number > 0) & (replayed != LIVE).all(-1)
            differs = (live.sort(-1).values != replayed.sort(-1).values).any(-1)
            self.changed += torch.stack([(differs & reads).sum(), reads.sum()])
        return top_k(scores, live, replayed)
