"""Saving a trainer in two parts: a quick copy of its state now, and files that are written while it trains on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from purerl.ranks import Ranks

__all__ = ["StagedState", "SupportsStaging"]


class StagedState(Protocol):
    """The state that a trainer had to save at some moment, independent of what it does since then."""

    def write(self, path: Path, ranks: Ranks) -> Mapping[str, str] | None:
        """Write the files of `Trainer.save` into `path`, and return the same digests. All `ranks` call it.

        A thread may call it while other methods of the trainer are called. Collective calls are made with `ranks` only.
        """
        ...


@runtime_checkable
class SupportsStaging(Protocol):
    """An optional method of a trainer, for checkpoints that are written in the background."""

    def stage(self) -> StagedState:
        """Copy what `save` would write now into the memory of the host, as far as this rank writes it. Collective."""
        ...
