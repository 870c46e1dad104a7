"""What all sides are given: one batch, in the form that each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.nn.functional import pad

from purerl.algos.algebra import Counts

__all__ = ["FLOATS", "SLACK", "Batch", "Row", "Settings", "Side", "draw", "row"]

SLACK = 1 / 1.1
"""What is not asked to be faster than others may take 1.1 times as long."""

FLOATS = ("reward", "value", "logp", "old_logp", "ref_logp", "advantage", "returns", "sum_pi_squared", "noise")


class Settings(dict):
    """Options as verl asks for them, `options.name` and `options.get(name)` alike; what is not set is None."""

    def __getattr__(self, name: str) -> Any:
        return dict.get(self, name)


@frozen(slots=False)
class Batch:
    """Fields [rows, time], but `group` [rows]. Cached properties are made before anything is measured."""

    reward: Tensor
    value: Tensor
    logp: Tensor
    old_logp: Tensor
    ref_logp: Tensor
    advantage: Tensor
    returns: Tensor
    sum_pi_squared: Tensor
    noise: Tensor
    action: Tensor
    group: Tensor

    @cached_property
    def counts(self) -> Counts:
        return Counts(self.action.sum(), self.action.any(-1).sum())

    @cached_property
    def mask(self) -> Tensor:
        """A mask as verl and OpenRLHF take it: 0 and 1 in floats."""
        return self.action.to(self.reward.dtype)

    @cached_property
    def uid(self) -> np.ndarray:
        """Labels as verl takes them: one Python object for each row."""
        return np.array([str(label) for label in self.group.tolist()] if not self.group.is_meta else [], dtype=object)

    @cached_property
    def baseline(self) -> Tensor:
        """A number for each row: [rows]."""
        return self.reward.sum(-1) / 2

    @cached_property
    def episode(self) -> SimpleNamespace:
        """Episodes as torchrl takes them, [rows, time, 1]: the row ends for good at its last action token."""
        remaining = self.action.flip(-1).cumsum(-1).flip(-1)
        value = torch.where(self.action, self.value, 0).unsqueeze(-1)
        done = (self.action & (remaining == 1)).unsqueeze(-1)
        return SimpleNamespace(
            reward=self.reward.unsqueeze(-1), value=value, following=pad(value[:, 1:], (0, 0, 0, 1)), done=done
        )

    def leaf(self) -> Tensor:
        """The log-probabilities, to be differentiated in."""
        return self.logp.detach().requires_grad_()

    def map(self, function: Any, *fields: str) -> Batch:
        """`function` of these fields, or of all of them."""
        names = fields or (*FLOATS, "action", "group")
        return evolve(self, **{name: function(getattr(self, name)) for name in names})


def draw(rows: int, time: int, *, size: int = 8, holes: bool = True, seed: int = 0) -> Batch:
    """Rows of which the first token is an action, of many lengths, with tool output in between, in groups of `size`."""
    random = torch.Generator().manual_seed(seed)
    floats = {name: torch.randn(rows, time, generator=random) for name in FLOATS}
    length = torch.randint(time // 2, time + 1, (rows, 1), generator=random)
    place = torch.arange(time)
    action = (place < length) & ((place % 16 < 12) | (place == length - 1) if holes else place >= 0)
    outcome = torch.randint(0, 2, (rows, 1), generator=random).float()
    logp = -floats["logp"].abs()
    return Batch(
        **floats
        | dict(
            reward=torch.where(place == length - 1, outcome, 0.0),
            logp=logp,
            old_logp=(logp - 0.1 * floats["old_logp"].abs()),
            ref_logp=(logp - 0.1 * floats["ref_logp"].abs()),
            sum_pi_squared=torch.rand(rows, time, generator=random),
            noise=torch.rand(rows, time, generator=random),
        ),
        action=action,
        group=torch.arange(rows) // size,
    )


Side = Callable[[Batch], Tensor]
"""What one library makes of a batch: [rows, time], or a number."""


class Row(NamedTuple):
    """One line of the table. `floats` arrays [rows, time] and one mask must be read or written once.

    `grouped`: it looks at groups. `faster` is how many times as fast as verl it is asked to be; `peers`, as the peers.
    """

    name: str
    sides: dict[str, Side]
    floats: int
    grouped: bool = False
    faster: float = SLACK
    peers: float = SLACK


def row(name: str, ours: Side, floats: int, /, *, sides: dict[str, tuple[Any, Side]], **options: Any) -> Row:
    """A row of those sides, named after their library, whose module is there."""
    there = {side: function for side, (module, function) in sides.items() if module is not None}
    return Row(name, {"purerl": ours} | there, floats, **options)
