"""A tracker in a thread of its own, which is waited for only so long: one that hangs does not hold up the run.

Calls are made one after the other, and begun only while the run waits for them: a tracker that draws random numbers
does not draw them between the run's own. One that does not answer in time is not waited for any more. What it is to be
told meanwhile is kept, and told once it answers again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from purerl.protocols import Tracker

__all__ = ["TrackerThread"]

_PATIENCE = 10.0
_MOST = 1000


class TrackerThread:
    """What `make` makes, told as `Tracker` is; whatever it raises is raised here, maybe by a later call.

    Each call waits for `patience` seconds at most, and for none while one before it is not answered. At most `most`
    calls are kept meanwhile; those that come on top are dropped.

    Raises: TimeoutError when it begins not to answer, for each call that is dropped, and by `close` where it has not
    been told everything.
    """

    def __init__(self, make: Callable[[], Tracker], *, patience: float = _PATIENCE, most: int = _MOST) -> None:
        self._patience, self._most = patience, most
        self._made: list[Tracker] = []
        self._untold: deque[Callable[[], None]] = deque()
        self._answer: Future[None] | None = None
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        Thread(target=self._serve, name="purerl tracker", daemon=True).start()
        self._tell(lambda: self._made.append(make()))

    def log(self, record: Mapping[str, Any]) -> None:
        self._tell(lambda: self._each(lambda tracker: tracker.log(record)))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell(lambda: self._each(lambda tracker: tracker.completions(step, rows)))

    def close(self, *, failed: bool) -> None:
        self._untold.append(lambda: self._each(lambda tracker: tracker.close(failed=failed)))
        end, errors = time.monotonic() + self._patience, []
        while self._answer or self._untold:
            try:
                whole = self._caught_up(end)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it is raised below, once all is told
                errors.append(error)
                continue
            if not whole:
                raise TimeoutError(self._silence())
        if errors:
            raise errors[0]

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in self._made:  # none where it could not be made
            tell(tracker)

    def _tell(self, call: Callable[[], None]) -> None:
        hangs = self._answer is not None and not self._answer.done()
        if len(self._untold) == self._most:
            raise TimeoutError(self._silence())
        self._untold.append(call)
        if not hangs and not self._caught_up(time.monotonic() + self._patience):
            raise TimeoutError(self._silence())

    def _caught_up(self, end: float) -> bool:
        """Tell what is to be told until `end`; whether all of it is. Raises what the tracker raises."""
        while self._answer or self._untold:
            if self._answer is None:
                self._answer = Future()
                self._calls.put((self._untold.popleft(), self._answer))
            wait([self._answer], timeout=max(0.0, end - time.monotonic()))
            if not self._answer.done():
                return False
            answer, self._answer = self._answer, None
            answer.result()
        return True

    def _silence(self) -> str:
        return f"it has not answered for {self._patience:g} seconds"

    def _serve(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
                answer.set_exception(error)
            else:
                answer.set_result(None)
