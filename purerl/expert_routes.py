"""Records of the experts that were selected for each token, by row, in files that every rank of a run can read.

A record has layers x k numbers for each token. So records do not travel with batches: the field `routes` of a row has
the number of its record, and 0 if it has none. The rank that has sampled a row writes the record, and the rank that
trains it reads it. Records of rows that have been trained are removed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from attrs import frozen

from purerl.errors import BatchError
from purerl.system.files import create

__all__ = ["LIVE", "RouteStore", "SupportsRoutes", "first_records", "number_of"]

LIVE = -1
"""In place of an expert: the token goes through the experts that the live router chooses."""


def number_of(row: int) -> int:
    """The number of the record of the row with this identity."""
    return 1 + row


def first_records(records: Iterable[np.ndarray]) -> np.ndarray | None:
    """The first record of each token, from `records` [n, layers, k] of the first n tokens of a sequence.

    None without `records`.

    >>> earlier, later = np.zeros((2, 1, 1), "int16"), np.ones((3, 1, 1), "int16")
    >>> first_records([earlier, later]).flatten().tolist()
    [0, 0, 1]
    """
    merged: np.ndarray | None = None
    for record in records:
        merged = record if merged is None else np.concatenate((merged, record[len(merged) :]))
    return merged


@frozen
class RouteStore:
    """Records by number, int16 [tokens, layers, k]: a file for each in `folder`, which all processes of a run see."""

    folder: Path

    def write(self, number: int, record: np.ndarray) -> None:
        """Store `record` under `number`; an older one is replaced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.path(number).with_suffix(f".{os.getpid()}.partial")
        with create(partial) as file:
            np.save(file, record.astype(np.int16, copy=False))
        os.replace(partial, self.path(number))

    def read(self, number: int) -> np.ndarray:
        """The record with this `number`. Raises BatchError if there is none."""
        try:
            return np.load(self.path(number))
        except (OSError, ValueError, EOFError) as error:
            got, need = f"record {number}: {error}", "a record of a row that has been sampled in this run"
            raise BatchError("field 'routes'", got=got, need=need) from error

    def read_all(self, numbers: Iterable[int]) -> dict[int, np.ndarray]:
        """The records with these `numbers`; 0 is none. Raises BatchError as `read`."""
        return {number: self.read(number) for number in numbers if number}

    def replace_all(self, records: Mapping[int, np.ndarray]) -> None:
        """Store `records`, and remove all others."""
        self.keep(())
        for number, record in records.items():
            self.write(number, record)

    def keep(self, numbers: Collection[int]) -> None:
        """Remove all records but those with these `numbers`."""
        kept = {self.path(number).name for number in numbers}
        for path in self.folder.glob("*"):
            if path.suffix in (".npy", ".partial") and path.name not in kept:
                path.unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        """The file of the record with this `number`."""
        return self.folder / f"{number}.npy"


@runtime_checkable
class SupportsRoutes(Protocol):
    """An optional method of trainers that replay the experts through which a generator has sampled."""

    def use_routes(self, routes: RouteStore) -> None:
        """Look for the records of rows in `routes`, by the number in their field `routes`. Called once, before a step.

        From then on the tokens of rows with a record go through its experts, in `score` and in `step`.
        """
        ...
