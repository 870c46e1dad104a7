"""Records of the experts of rows, for the passes that replay them: of a scoring pass, or of a generator.

The records of a scoring pass are on the rank that has computed the row. The experts of a token are layers x k numbers.
So they do not travel with the batch: its field `routes` has the number of the record of each row.

    number = 1 + rank + ranks * (rows of earlier passes + index of the row in this pass),  0: no record

From it every rank knows where a record is. An optimizer step may read a row on another rank: then its record is sent
there, and nowhere else. Only the records of the last pass exist.

The records of a generator are in the store of the run (`purerl.expert_routes`), from which each rank reads those of
its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from purerl.backends.hf.moe.replay import DTYPE, LIVE, Routers
from purerl.errors import BatchError, InputError
from purerl.expert_routes import RouteStore
from purerl.kernels.partition import tokens_needed
from purerl.ranks import Ranks
from purerl.types import RowInt, TokenBool

__all__ = ["RouteRecords", "SampledRoutes", "open_records", "set_store"]


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

    def padded(self, numbers: RowInt, time: int) -> Tensor:
        """[rows, time, layers, k] the records of these numbers, on the device; `LIVE` where there is none."""
        return _padded(self.records, numbers, time, self.shape).to(self.device)

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


class SampledRoutes:
    """The records that a generator has made, of the rows that this rank reads.

    ranks    those that read different rows
    device   of tensors of records
    routers  of the model
    store    has the records of all rows; set by `set_store`. They may have tokens after those that are read
    """

    def __init__(self, ranks: Ranks, device: torch.device, routers: Routers) -> None:
        self.ranks, self.device, self.routers = ranks, device, routers
        self.store: RouteStore | None = None
        self.records: dict[int, Tensor] = {}

    def fetch(self, numbers: RowInt, action: TokenBool, parts: Sequence[Tensor]) -> list[RowInt]:
        """The numbers of the records of each micro-batch of this rank, which are read from the store. Collective.

        numbers, action  of all rows of the step
        parts            the indices of the rows of each micro-batch

        Raises: BatchError, on every rank, for records that do not exist, or do not fit the model.
        """
        own = [numbers[rows] for rows in parts]
        self.ranks.on_all(lambda: self._read(torch.cat([numbers[:0], *own]).unique().tolist()), "records of routes")
        return own

    def _read(self, numbers: Sequence[int]) -> None:
        if self.store is None:
            need = "the store of the experts of a generator"
            raise InputError("a batch with routes", got="a trainer without a store", need=need, do="use_routes first")
        records = self.store.read_all(numbers)
        self.records = {number: self._of_model(torch.from_numpy(record)) for number, record in records.items()}

    def _of_model(self, record: Tensor) -> Tensor:
        """`record` of the layers of this process. Raises BatchError if it is one of another model."""
        columns, experts = self.routers.columns(record.shape[1]), self.routers.experts
        if record.shape[1] <= max(columns, default=-1) or record.shape[2] != self.routers.k:
            got = f"{record.shape[2]} experts of a token in {record.shape[1]} layers"
            need = f"{self.routers.k} in {len(self.routers.routed)}, as in the model that is trained"
            raise BatchError("field 'routes'", got=got, need=need)
        record = record[:, columns]
        if record.numel() and not LIVE <= int(record.min()) <= int(record.max()) < experts:
            got = f"experts from {int(record.min())} to {int(record.max())}"
            raise BatchError("field 'routes'", got=got, need=f"experts from 0 to {experts - 1}, or {LIVE}")
        return record

    def padded(self, numbers: RowInt, time: int) -> Tensor:
        """[rows, time, layers, k] the records of these numbers, on the device; `LIVE` where there is none."""
        return _padded(self.records, numbers, time, self.routers.shape).to(self.device)


def _padded(records: Mapping[int, Tensor], numbers: RowInt, time: int, shape: tuple[int, int]) -> Tensor:
    routes = torch.full((len(numbers), time, *shape), LIVE, dtype=DTYPE)
    for row, number in enumerate(numbers.tolist()):
        if number:
            record = records[number][:time]
            routes[row, : len(record)] = record
    return routes


def open_records(source: str, ranks: Ranks, device: torch.device, routers: Routers) -> RouteRecords | SampledRoutes:
    """The records that a trainer replays with `replay_routes` = `source`; the other arguments as of `SampledRoutes`."""
    if source == "generator":
        return SampledRoutes(ranks, device, routers)
    return RouteRecords(ranks, device, routers.shape)


def set_store(records: RouteRecords | SampledRoutes | None, store: RouteStore) -> None:
    """Let `records`, those of a trainer, be in `store`. Raises InputError if they are not those of a generator."""
    if not isinstance(records, SampledRoutes):
        got, need = "a trainer that does not replay them", "trainer.replay_routes=generator"
        raise InputError("experts of a generator", got=got, need=need)
    records.store = store
