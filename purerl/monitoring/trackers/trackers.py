"""Combine several trackers into one that never stops the run."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from types import TracebackType
from typing import Any, Self

from purerl.monitoring.trackers.protocol import SupportsWarnings, Tracker
from purerl.system.credentials import hide_credentials

__all__ = ["Trackers"]

_LOG = logging.getLogger("purerl")


class Trackers:
    """A tracker that forwards each call to several trackers.

    An exception in a tracker does not stop the run or reach the other trackers. The first exception of each tracker is
    logged as a warning. `close` logs how often each tracker failed, if it failed more than once. What a tracker prints
    to stdout is written to stderr.

    As a context manager, it calls `close` on exit, with `failed=True` if the block raised an exception.

    failures   number of failed calls by name of the tracker
    """

    def __init__(self) -> None:
        self._trackers: dict[str, tuple[Tracker, int]] = {}
        self.failures: Counter[str] = Counter()

    def add(
        self, name: str, build: Callable[[], Tracker], *, every: int = 1, history: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Add the tracker that `build` returns. It gets every record, and the completions of every `every`-th step.

        It gets the records `history` first.
        """
        with self._guarded(name):
            self._trackers[name] = build(), every
            for record in history:
                self._trackers[name][0].log(_with_values(record))

    def log(self, record: Mapping[str, Any]) -> None:
        """Forward `record` without the metrics that have no value."""
        values = _with_values(record)
        for name, (tracker, _) in self._trackers.items():
            with self._guarded(name):
                tracker.log(values)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, (tracker, every) in self._trackers.items():
            if step % every == 0:
                with self._guarded(name):
                    tracker.completions(step, rows)

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, (tracker, _) in self._trackers.items():
            with self._guarded(name):
                tracker.evaluation_completions(step, rows)

    def warn(self, step: int, name: str, text: str) -> None:
        """Forward a warning to the trackers that have a method for it."""
        for tracker_name, (tracker, _) in self._trackers.items():
            if isinstance(tracker, SupportsWarnings):
                with self._guarded(tracker_name):
                    tracker.warn(step, name, text)

    def close(self, *, failed: bool) -> None:
        # The console was added first. It closes last, because it shows the warnings of the others.
        for name, (tracker, _) in reversed(self._trackers.items()):
            with self._guarded(name):
                tracker.close(failed=failed)
        for name, count in self.failures.items():
            if count > 1:
                _LOG.warning("tracker %s failed %d times", name, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Log and count exceptions of the block. KeyboardInterrupt is not caught."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no failure of a tracker may stop the run
            self.failures[name] += 1
            if self.failures[name] == 1:
                problem = hide_credentials(f"{type(error).__name__}: {error}")  # it may quote the URL of a server
                _LOG.warning("tracker %s: %s; the run continues", name, problem)


def _with_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` without the metrics that have no value."""
    return {metric: value for metric, value in record.items() if value is not None}
