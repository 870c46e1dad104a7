"""One generator for many coroutines: it gets their requests together, and each of them gets its own completions."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from attrs import define, field

from purerl.errors import EngineError
from purerl.protocols import Completion, Generator, Request, Weights
from purerl.rollouts.event_loop import EventLoop

__all__ = ["Engine", "Ticket"]

T = TypeVar("T")


@define(eq=False)
class Ticket:
    """Who requests: the number of its requests that are not finished, and the keys of those that may be continued."""

    requests: int = 0
    kept: list[str] = field(factory=list)


@define(eq=False)
class _Call:
    """One call of `Engine.generate`, with the completions so far."""

    future: asyncio.Future[list[Completion]]
    keys: list[str]
    completions: dict[str, Completion] = field(factory=dict)


class Engine:
    """Passes requests of coroutines to `generator`, and completions back.

    `generate` runs in the event loop. `pump` and `load_weights` call the generator, always in the same thread.
    `on_request` is called when there are new requests.

    busy_seconds  time during which the generator had something to do
    """

    def __init__(self, generator: Generator, loop: EventLoop, on_request: Callable[[], object]) -> None:
        self.generator, self._loop, self._on_request = generator, loop, on_request
        self._new: deque[Request] = deque()
        self._cancelled: deque[str] = deque()
        self._calls: dict[str, _Call] = {}  # by key; used in the event loop only
        self._tickets: dict[str, Ticket] = {}
        self._in_flight = 0
        self.busy_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether there is something to submit, to cancel or to collect."""
        return bool(self._new or self._cancelled or self._in_flight)

    async def generate(self, requests: Sequence[Request], *, ticket: Ticket) -> list[Completion]:
        """The completions of `requests`, in the same order.

        Requests that are made in the same turn of the event loop are submitted together.

        If the coroutine is cancelled, its requests are cancelled too.
        """
        if not requests:
            return []
        call = _Call(asyncio.get_running_loop().create_future(), [request.key for request in requests])
        self._calls.update(dict.fromkeys(call.keys, call))
        self._tickets.update(dict.fromkeys(call.keys, ticket))
        ticket.requests += len(requests)
        ticket.kept += [request.key for request in requests if request.keep]
        self._new.extend(requests)
        self._on_request()
        try:
            return await call.future
        except asyncio.CancelledError:
            self._cancelled.extend(key for key in call.keys if key not in call.completions)
            self._on_request()
            raise

    def release(self, ticket: Ticket) -> None:
        """Let the generator forget the sequences that could have been continued."""
        self._cancelled.extend(ticket.kept)

    def cancel_due(self) -> None:
        """Cancel what is due."""
        if cancelled := _take_all(self._cancelled):
            self.generator.cancel(cancelled)

    def pump(self, timeout: float) -> None:
        """Submit and cancel what is due, and collect: until a request is finished, or for `timeout` seconds.

        Raises: InputError for an invalid request; EngineError if the generator has lost requests.
        """
        start = time.perf_counter()
        if new := _take_all(self._new):
            self.generator.submit(new)
            self._in_flight += len(new)
        self.cancel_due()
        finished = self.generator.collect(timeout) if self._in_flight else []
        seconds = time.perf_counter() - start
        self.busy_seconds += seconds
        if self._in_flight and not finished and seconds < timeout / 2:
            raise _lost(self._in_flight)
        self._in_flight -= len(finished)
        if finished:
            self._loop.call(self._deliver, finished)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            call = self._calls.pop(completion.key)
            self._tickets.pop(completion.key).requests -= 1
            call.completions[completion.key] = completion
            if len(call.completions) == len(call.keys) and not call.future.done():
                call.future.set_result([call.completions[key] for key in call.keys])

    def load_weights(self, weights: Weights, version: int) -> None:
        """Give the generator new weights; requests in flight continue with them."""
        self.generator.load_weights(weights, version=version)


def _take_all(queue: deque[T]) -> list[T]:
    """Everything in `queue`, to which another thread may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def _lost(missing: int) -> EngineError:
    got = f"no completion from collect(), with {missing} missing"
    need = "a completion of every request that was submitted"
    do = "test the generator with purerl.testing.check_generator"
    return EngineError("a generator has lost requests", got=got, need=need, do=do)
