"""Rows of the generator's table, and what all of them need for the next decoding steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from attrs import define
from torch import Tensor

from purerl.backends.logits import Filters
from purerl.backends.requests import PendingRequest
from purerl.backends.sampling import signed, uniform

__all__ = ["STEPS_PER_DRAW", "Slot", "StepInputs"]

STEPS_PER_DRAW = 64
"""Decoding steps for which random numbers are generated in one call."""


@define(eq=False)
class Slot:
    """A request in the table. It was admitted at column `admitted`, with `before` tokens already sampled.

    The positions of its sampled tokens are their numbers in the sequence, plus `shift`: images have their own.
    """

    pending: PendingRequest
    admitted: int
    before: int
    shift: int = 0

    @property
    def first(self) -> int:
        """The column of its first token."""
        return self.admitted + 1 - self.before - len(self.pending.request.tokens)

    @property
    def last(self) -> int:
        """The column of the last token that it may have."""
        return self.admitted + self.pending.request.sampling.max_tokens - self.before


class StepInputs(NamedTuple):
    """Inputs of the steps from column `now` on, until a row is admitted; tensors and lists have an entry for each row.

    first              the column of its first token
    origin             the column at which its positions would start at 0
    is_padded          whether rows start in different columns
    last               the column of the last token that it may have
    uniform            random numbers for the next tokens, one column per step
    stop_tokens        padded with -1; None if no row has stop tokens
    has_stop_strings   whether it has any
    filters            what changes the logits before a token is sampled; None: nothing in any row
    """

    now: int
    first: Tensor
    origin: Tensor
    is_padded: bool
    last: list[int]
    uniform: Tensor
    temperature: Tensor
    stop_tokens: Tensor | None
    has_stop_strings: list[bool]
    filters: Filters | None

    @classmethod
    def of(cls, slots: Sequence[Slot], now: int, filters: Filters | None, device: torch.device) -> Self:
        """The inputs of the rows `slots` from column `now` on."""
        samplings = [slot.pending.request.sampling for slot in slots]
        width = max(len(sampling.stop_tokens) for sampling in samplings)
        stop_tokens = [[*sampling.stop_tokens, *[-1] * (width - len(sampling.stop_tokens))] for sampling in samplings]
        seed = torch.tensor([[signed(slot.pending.request.seed)] for slot in slots], device=device)
        sampled = torch.tensor([[slot.before + now - slot.admitted] for slot in slots], device=device)
        temperature = [sampling.temperature for sampling in samplings]
        first = torch.tensor([slot.first for slot in slots], device=device)
        return cls(
            now=now,
            first=first,
            origin=first - torch.tensor([slot.shift for slot in slots], device=device),
            is_padded=_varies(first),
            last=[slot.last for slot in slots],
            uniform=uniform(seed, sampled + torch.arange(STEPS_PER_DRAW, device=device)),
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            stop_tokens=torch.tensor(stop_tokens, device=device) if width else None,
            has_stop_strings=[bool(sampling.stop_strings) for sampling in samplings],
            filters=filters,
        )

    def of_rows(self, rows: Sequence[int]) -> StepInputs:
        """The inputs of `rows` alone, in this order."""
        index = torch.tensor(rows, device=self.first.device)
        first = self.first[index]
        return self._replace(
            first=first,
            origin=self.origin[index],
            is_padded=_varies(first),
            last=[self.last[row] for row in rows],
            uniform=self.uniform[index],
            temperature=self.temperature[index],
            stop_tokens=None if self.stop_tokens is None else self.stop_tokens[index],
            has_stop_strings=[self.has_stop_strings[row] for row in rows],
            filters=None if self.filters is None else Filters(*(each[index] for each in self.filters)),
        )


def _varies(values: Tensor) -> bool:
    return bool((values != values[0]).any())
