"""Several trackers as one, and the run safe from all of them."""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from purerl.protocols import Tracker

__all__ = ["Trackers"]

_LOG = logging.getLogger("purerl")


class Trackers:
    """Tells several trackers what one is told.

    What a tracker raises is a warning, the first time, and counted: the run goes on as if nothing had been told. Nor
    does a tracker move the random numbers that the run draws. What it prints goes to stderr.

    `failures` counts, by the tracker's name, what could not be told.
    """

    def __init__(self) -> None:
        self._trackers: dict[str, tuple[Tracker, int]] = {}
        self.failures: Counter[str] = Counter()

    def add(self, name: str, make: Callable[[], Tracker], *, every: int = 1) -> None:
        """Tell what `make` makes, from now on: every record, and the completions of every so-manieth step."""
        with self._guarded(name):
            self._trackers[name] = make(), every

    def log(self, record: Mapping[str, Any]) -> None:
        for name, (tracker, _) in self._trackers.items():
            with self._guarded(name):
                tracker.log(record)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, (tracker, every) in self._trackers.items():
            if step % every == 0:
                with self._guarded(name):
                    tracker.completions(step, rows)

    def close(self, *, failed: bool) -> None:
        # The console was first, and shows what the others say while they close.
        for name, (tracker, _) in reversed(self._trackers.items()):
            with self._guarded(name):
                tracker.close(failed=failed)
        for name, count in self.failures.items():
            if count > 1:
                _LOG.warning("tracker %s could not be told %d times", name, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Let nothing out of the block but what interrupts the run."""
        try:
            with _randomness_kept(), redirect_stdout(sys.stderr):
                yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever goes wrong in a tracker, the run goes on
            self.failures[name] += 1
            if self.failures[name] == 1:
                _LOG.warning("tracker %s: %s: %s; the run goes on", name, type(error).__name__, error)


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """Whatever the block draws from the global generators, what comes after draws as if it had not."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
