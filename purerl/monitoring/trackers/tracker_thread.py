"""Run a tracker in a separate thread, so that a tracker that hangs does not block the run.

Calls run one at a time, in order, and each one starts while the run waits for it. If a call takes longer than the
timeout, the run continues without waiting. Later calls are then queued, and are executed when the tracker responds
again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from purerl.monitoring.trackers.protocol import SupportsWarnings, Tracker

__all__ = ["TrackerThread"]

_TIMEOUT = 10.0
_MAX_PENDING = 1000


class TrackerThread:
    """Implements `Tracker` by calling the tracker that `build` returns in a separate thread.

    Each call waits at most `timeout` seconds, or not at all while an earlier call is still running. At most
    `max_pending` calls are queued; further calls are dropped.

    An exception of the tracker is raised in the calling thread, possibly by a later call than the one that caused it.

    Raises: TimeoutError when a call exceeds the timeout, for every call that is dropped, and by `close` if some calls
    were not executed.
    """

    def __init__(
        self, build: Callable[[], Tracker], *, timeout: float = _TIMEOUT, max_pending: int = _MAX_PENDING
    ) -> None:
        self._timeout, self._max_pending = timeout, max_pending
        self._trackers: list[Tracker] = []  # empty if the tracker could not be built
        self._pending: deque[Callable[[], None]] = deque()
        self._running: Future[None] | None = None
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        Thread(target=self._execute_calls, name="purerl tracker", daemon=True).start()
        self._submit(lambda: self._trackers.append(build()))

    def log(self, record: Mapping[str, Any]) -> None:
        self._submit(lambda: self._with_tracker(lambda tracker: tracker.log(record)))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._submit(lambda: self._with_tracker(lambda tracker: tracker.completions(step, rows)))

    def evaluation_completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._submit(lambda: self._with_tracker(lambda tracker: tracker.evaluation_completions(step, rows)))

    def warn(self, step: int, name: str, text: str) -> None:
        """Call the method `warn` of the tracker, if it has one."""
        self._submit(lambda: self._with_tracker(lambda tracker: _warn(tracker, step, name, text)))

    def close(self, *, failed: bool) -> None:
        self._pending.append(lambda: self._with_tracker(lambda tracker: tracker.close(failed=failed)))
        deadline, errors = time.monotonic() + self._timeout, []
        while self._running or self._pending:
            try:
                is_finished = self._run_pending(deadline)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - raised below, after the remaining calls
                errors.append(error)
                continue
            if not is_finished:
                raise TimeoutError(self._timeout_message())
        if errors:
            raise errors[0]

    def _with_tracker(self, call: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            call(tracker)

    def _submit(self, call: Callable[[], None]) -> None:
        hangs = self._running is not None and not self._running.done()
        if len(self._pending) == self._max_pending:
            raise TimeoutError(self._timeout_message())
        self._pending.append(call)
        if not hangs and not self._run_pending(time.monotonic() + self._timeout):
            raise TimeoutError(self._timeout_message())

    def _run_pending(self, deadline: float) -> bool:
        """Execute the pending calls until `deadline`. Returns whether all of them finished; raises their exceptions."""
        while self._running or self._pending:
            if self._running is None:
                self._running = Future()
                self._calls.put((self._pending.popleft(), self._running))
            wait([self._running], timeout=max(0.0, deadline - time.monotonic()))
            if not self._running.done():
                return False
            finished, self._running = self._running, None
            finished.result()
        return True

    def _timeout_message(self) -> str:
        return f"no response within {self._timeout:g} s"

    def _execute_calls(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the future
                future.set_exception(error)
            else:
                future.set_result(None)


def _warn(tracker: Tracker, step: int, name: str, text: str) -> None:
    if isinstance(tracker, SupportsWarnings):
        tracker.warn(step, name, text)
