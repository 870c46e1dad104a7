"""One batch in the formats of all libraries, and the rows of the table."""

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

__all__ = ["FLOATS", "SLACK", "Batch", "Function", "Row", "Settings", "draw", "row"]

SLACK = 1 / 1.1
"""The default target: the time of another library divided by the time of purerl is at least this."""

FLOATS = ("reward", "value", "logp", "old_logp", "ref_logp", "advantage", "returns", "sum_pi_squared", "noise")


class Settings(dict):
    """Options as verl reads them: `options.name` or `options.get(name)`. Options that are not set are None."""

    def __getattr__(self, name: str) -> Any:
        return dict.get(self, name)


@frozen(slots=False)
class Batch:
    """Fields [rows, time], and `group` [rows].

    The first call that reads a cached property computes it. The minimum is that of a later call.
    """

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
        """The mask of verl and OpenRLHF: floats 0 and 1."""
        return self.action.to(self.reward.dtype)

    @cached_property
    def uid(self) -> np.ndarray:
        """The labels of verl: one Python object per row."""
        return np.array([str(label) for label in self.group.tolist()] if not self.group.is_meta else [], dtype=object)

    @cached_property
    def baseline(self) -> Tensor:
        """A baseline per row: [rows]."""
        return self.reward.sum(-1) / 2

    @cached_property
    def episode(self) -> SimpleNamespace:
        """The episodes of torchrl, [rows, time, 1]. A row is done at its last action token."""
        remaining = self.action.flip(-1).cumsum(-1).flip(-1)
        value = torch.where(self.action, self.value, 0).unsqueeze(-1)
        done = (self.action & (remaining == 1)).unsqueeze(-1)
        return SimpleNamespace(
            reward=self.reward.unsqueeze(-1), value=value, following=pad(value[:, 1:], (0, 0, 0, 1)), done=done
        )

    def leaf(self) -> Tensor:
        """The log-probabilities, with gradients enabled."""
        return self.logp.detach().requires_grad_()

    def map(self, function: Any, *fields: str) -> Batch:
        """This batch with `function` applied to `fields`, or to all fields."""
        names = fields or (*FLOATS, "action", "group")
        return evolve(self, **{name: function(getattr(self, name)) for name in names})


def draw(rows: int, time: int, *, size: int = 8, holes: bool = True, seed: int = 0) -> Batch:
    """Rows of different lengths, in groups of `size`. With `holes`, there is tool output between action tokens.

    The first token of each row is an action token.
    """
    random = torch.Generator().manual_seed(seed)
    floats = {name: torch.randn(rows, time, generator=random) for name in FLOATS}
    length = torch.randint(time // 2, time + 1, (rows, 1), generator=random)
    index = torch.arange(time)
    action = (index < length) & ((index % 16 < 12) | (index == length - 1) if holes else index >= 0)
    outcome = torch.randint(0, 2, (rows, 1), generator=random).float()
    logp = -floats["logp"].abs()
    return Batch(
        **floats
        | dict(
            reward=torch.where(index == length - 1, outcome, 0.0),
            logp=logp,
            old_logp=(logp - 0.1 * floats["old_logp"].abs()),
            ref_logp=(logp - 0.1 * floats["ref_logp"].abs()),
            sum_pi_squared=torch.rand(rows, time, generator=random),
            noise=torch.rand(rows, time, generator=random),
        ),
        action=action,
        group=torch.arange(rows) // size,
    )


Function = Callable[[Batch], Tensor]
"""A function of one library, called with a batch. It returns a tensor [rows, time], or a number."""


class Row(NamedTuple):
    """One line of the table.

    functions     the function of each library, by name of the library
    floats        number of float arrays [rows, time] that must be read or written once, beside one mask
    grouped       whether it is a function over groups
    verl_target   the minimum ratio of the time of verl to the time of purerl
    other_target  the same for all other libraries
    """

    name: str
    functions: dict[str, Function]
    floats: int
    grouped: bool = False
    verl_target: float = SLACK
    other_target: float = SLACK


def row(name: str, purerl: Function, floats: int, /, *, others: dict[str, tuple[Any, Function]], **options: Any) -> Row:
    """A row with purerl and with those `others` whose module could be imported."""
    importable = {library: function for library, (module, function) in others.items() if module is not None}
    return Row(name, {"purerl": purerl} | importable, floats, **options)
