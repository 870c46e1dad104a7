"""The experts that a scoring pass has recorded, each on the rank that has computed the row.

The experts of a token are layers x k numbers. So they do not travel with the batch: its field `routes` has the number
of the record of each row.

    number = 1 + rank + ranks * (rows of earlier passes + index of the row in this pass),  0: no record

From it every rank knows where a record is. An optimizer step may read a row on another rank: then its record is sent
there, and nowhere else. Only the records of the last pass exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purerl.backends.hf.routes import DTYPE, LIVE
from purerl.errors import BatchError
from purerl.kernels.partition import tokens_needed
from purerl.ranks import Ranks
from purerl.types import RowInt, TokenBool

__all__ = ["RouteRecords"]


class RouteRecords:
    """The records of this rank, int16 [tokens, layers, k] by number, in the memory of the CPU.

    ranks   those that read different rows
    device  of tensors that are sent between ranks
    shape   (layers, k)
    """

    def __init__(self, ranks: Ranks, device: torch.device, shape: tuple[int, int]) -> None:
        self.ranks, self.device, self.shape = ranks, device, shape
        self.records: dict[int, Tensor] = {}
        self.first = 0
        self.lengths = torch.zeros(0, dtype=torch.int64)

    def begin(self, action: TokenBool) -> None:
        """Drop all records. A pass over rows with these `action` tokens begins."""
        self.records.clear()
        self.first += len(self.lengths)
        self.lengths = tokens_needed(action)

    def keep(self, rows: RowInt, routes: Tensor) -> RowInt:
        """The numbers of the records of these `rows` of the pass, from their `routes` [rows, time, layers, k]."""
        numbers = 1 + self.ranks.rank + self.ranks.size * (self.first + rows)
        lengths = self.lengths[rows]
        for number, length, record in zip(numbers.tolist(), lengths.tolist(), routes.to("cpu", DTYPE), strict=True):
            self.records[number] = record[:length].clone()
        return torch.where(lengths > 0, numbers, 0)

    def fetch(self, numbers: RowInt, action: TokenBool, parts: Sequence[Tensor]) -> list[RowInt]:
        """The numbers of the records of each micro-batch of this rank; those of other ranks come here. Collective.

        numbers, action  of all rows of the step
        parts            the indices of the rows of each micro-batch

        Raises: BatchError, on every rank, for numbers that are not of the last pass, and for rows of another length.
        """
        self._check(numbers, tokens_needed(action))
        own = torch.cat([numbers[:0], *(numbers[rows] for rows in parts)])
        missing = [number for number in own.unique().tolist() if number and number not in self.records]
        asked = self.ranks.gather(self._by_rank(missing), "records of routes")
        sent = [self._packed(of_rank[self.ranks.rank]) for of_rank in asked]
        for wanted, received in zip(self._by_rank(missing), self.ranks.exchange_bytes(sent), strict=True):
            sizes = [self._length(number) for number in wanted]
            tokens = received.cpu().view(DTYPE).view(sum(sizes), *self.shape)
            self.records |= dict(zip(wanted, tokens.split(sizes), strict=True)) if wanted else {}
        return [numbers[rows] for rows in parts]

    def padded(self, numbers: RowInt | None, time: int) -> Tensor | None:
        """[rows, time, layers, k] the records of these numbers, on the device; `LIVE` where there is none.

        None without numbers.
        """
        if numbers is None:
            return None
        routes = torch.full((len(numbers), time, *self.shape), LIVE, dtype=DTYPE)
        for row, number in enumerate(numbers.tolist()):
            if number:
                record = self.records[number]
                routes[row, : len(record)] = record
        return routes.to(self.device)

    def _by_rank(self, numbers: Sequence[int]) -> list[list[int]]:
        """`numbers` by the rank that has the record."""
        size = self.ranks.size
        return [[number for number in numbers if (number - 1) % size == rank] for rank in range(size)]

    def _packed(self, numbers: Sequence[int]) -> Tensor:
        """The records of these numbers, as bytes."""
        records = [self.records[number].flatten() for number in numbers]
        return (torch.cat(records) if records else torch.zeros(0, dtype=DTYPE)).view(torch.uint8).to(self.device)

    def _length(self, number: int) -> int:
        return int(self.lengths[(number - 1) // self.ranks.size - self.first])

    def _check(self, numbers: RowInt, lengths: RowInt) -> None:
        has_record = numbers != 0
        index = (numbers[has_record] - 1).div(self.ranks.size, rounding_mode="floor") - self.first
        if ((index < 0) | (index >= len(self.lengths))).any():
            need, do = "the `routes` that the last pass with this output has returned", "score the batch again"
            raise BatchError("field 'routes'", got="numbers of records that do not exist", need=need, do=do)
        if not torch.equal(self.lengths[index], lengths[has_record]):
            raise BatchError("field 'routes'", got="rows of another length than the records", need="the same rows")
