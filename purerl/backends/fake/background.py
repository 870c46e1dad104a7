"""A fake generator that decodes in a thread of its own, as an engine in another process does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Condition, Thread
from typing import TYPE_CHECKING

from purerl.errors import EngineError
from purerl.protocols import Capabilities, Completion, Request, Weights

if TYPE_CHECKING:
    from purerl.backends.fake.engine import FakeGenerator

__all__ = ["BackgroundGenerator"]

_PAUSE = 1e-4
"""Seconds between two steps, at least: without a pause the thread would take the lock again before anyone else."""

_DEADLINE = 60.0
"""Seconds until `close` gives up waiting for the thread."""


class BackgroundGenerator:
    """A `Generator` that makes the steps of `generator` in a thread, one in `seconds_per_token`, until it is closed.

    Its methods and the steps exclude each other. If a step raises an exception, `collect` raises EngineError.
    """

    def __init__(self, generator: FakeGenerator, capabilities: Capabilities, seconds_per_token: float) -> None:
        self.capabilities = capabilities
        self._generator, self._pause = generator, max(seconds_per_token, _PAUSE)
        self._changed = Condition()
        self._is_closed = False
        self._error: Exception | None = None
        self._thread = Thread(target=self._decode, name="fake generator", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[Request]) -> None:
        with self._changed:
            self._generator.submit(requests)
            self._changed.notify_all()

    def collect(self, timeout: float | None = None) -> list[Completion]:
        def is_over() -> bool:
            return self._error is not None or self._generator.has_finished or not self._generator.has_pending

        with self._changed:
            self._changed.wait_for(is_over, timeout)
            if self._error is not None:
                raise EngineError("the fake generator stopped", got=repr(self._error)) from self._error
            return self._generator.take()

    def cancel(self, keys: Sequence[str]) -> None:
        with self._changed:
            self._generator.cancel(keys)
            self._changed.notify_all()

    def load_weights(self, weights: Weights, *, version: int) -> None:
        with self._changed:
            self._generator.load_weights(weights, version=version)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_DEADLINE)
        self._generator.close()

    def _decode(self) -> None:
        while not self._is_closed and self._error is None:
            time.sleep(self._pause)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._generator.has_pending)
                try:
                    self._generator.step()
                except Exception as error:  # noqa: BLE001 - `collect` raises it
                    self._error = error
                self._changed.notify_all()
