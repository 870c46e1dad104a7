"""One generator for many coroutines: it gets their requests together, and each of them gets its own completions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from attrs import define, field

from purerl.errors import EngineError, InputError
from purerl.protocols import Completion, Generator, Request, SupportsSleep, Weights
from purerl.rollouts.lockstep import Lockstep
from purerl.system.event_loop import EventLoop

__all__ = ["Engine", "Ticket"]

T = TypeVar("T")


@define(eq=False)
class Ticket:
    """A requester: its calls that are not finished, and the keys of its requests that may be continued."""

    calls: set[_Call] = field(factory=set)
    kept: list[str] = field(factory=list)


@define(eq=False)
class _Call:
    """One call of `Engine.generate`, with the completions so far."""

    future: asyncio.Future[list[Completion]]
    keys: list[str]
    completions: dict[str, Completion] = field(factory=dict)


class Engine:
    """Passes requests of coroutines to `generator`, and completions back.

    `generate` and `release` run in the event loop. The other methods call the generator, always in the same thread.
    `on_request` is called when there are new requests.

    lockstep       episodes whose requests wait for each other
    num_awaited    requests that a coroutine waits for
    busy_seconds   time during which the generator had something to do
    last_progress  when the generator has worked, as time.monotonic(). An engine that decodes on its own has worked when
                   it returns a completion
    """

    def __init__(self, generator: Generator, loop: EventLoop, on_request: Callable[[], object]) -> None:
        self.generator, self._loop, self._on_request = generator, loop, on_request
        self._new: deque[Request] = deque()
        self._cancelled: deque[str] = deque()
        self._calls: dict[str, _Call] = {}  # by key; used in the event loop only
        self._in_flight: set[str] = set()  # the generator has them; used in its thread only
        self.lockstep = Lockstep(on_request)
        self.num_awaited = 0
        self.busy_seconds = 0.0
        self.last_progress = 0.0

    @property
    def has_work(self) -> bool:
        """Whether there is something to submit, to cancel or to collect."""
        return bool(self._new or self._cancelled or self._in_flight)

    @property
    def may_decode(self) -> bool:
        """Whether a coroutine waits for a request that is not held until others are made."""
        return self.num_awaited > self.lockstep.num_held

    async def generate(self, requests: Sequence[Request], *, ticket: Ticket) -> list[Completion]:
        """The completions of `requests`, in the same order.

        Requests that are made in the same turn of the event loop are submitted together.

        If the coroutine is cancelled, its requests are cancelled too.

        Raises: InputError for a key that another request in flight has.
        """
        if not requests:
            return []
        keys = [request.key for request in requests]
        self._check_keys(keys)
        call = _Call(asyncio.get_running_loop().create_future(), keys)
        self._calls.update(dict.fromkeys(keys, call))
        ticket.calls.add(call)
        ticket.kept += [request.key for request in requests if request.keep and not self.lockstep.releases(request.key)]
        self.num_awaited += len(keys)
        self._new.extend(self.lockstep.hold(requests))
        self._on_request()
        try:
            return await call.future
        except asyncio.CancelledError:
            withdrawn = {*filter(self.lockstep.withdraw, keys)}
            for key in withdrawn:
                del self._calls[key]
            self._cancel([key for key in keys if key not in call.completions and key not in withdrawn])
            raise
        finally:
            self.num_awaited -= len(keys)
            ticket.calls.discard(call)

    def _check_keys(self, keys: Sequence[str]) -> None:
        for key, count in Counter(keys).items():
            if count > 1 or key in self._calls:
                do = "begin the keys of a workflow with draw.key, and give each request of a draw its own"
                need = "a key that no request in flight has"
                raise InputError(f"request {key!r}", got="a key that is in use", need=need, do=do)

    def _cancel(self, keys: Sequence[str]) -> None:
        self._cancelled.extend(keys)
        self._on_request()

    def release(self, ticket: Ticket) -> None:
        """Cancel what is still requested, and let the generator forget sequences that could have been continued."""
        for call in ticket.calls:
            call.future.cancel()
        if ticket.kept:
            self._cancel(ticket.kept)

    def submit_due(self) -> None:
        """Submit and cancel what is due. Raises InputError for an invalid request."""
        cancelled = dict.fromkeys(_take_all(self._cancelled))  # first: a request that was cancelled is submitted before
        due = self.lockstep.take()
        cancelled.update(dict.fromkeys(due.released))
        start = time.perf_counter()
        if new := [*_take_all(self._new), *due.requests]:
            self.generator.submit(new)
            self._in_flight.update(request.key for request in new)
            self.last_progress = time.monotonic()
        if cancelled:
            self.generator.cancel([*cancelled])
        self.busy_seconds += time.perf_counter() - start

    def pump(self, timeout: float) -> bool:
        """Collect until a request is finished, or for `timeout` seconds.

        Returns whether one has finished, or none is in flight.

        Raises: EngineError if the generator has lost requests, or returns a completion that nobody has requested.
        """
        if not self._in_flight:
            return True
        start = time.perf_counter()
        finished = self.generator.collect(timeout)
        seconds = time.perf_counter() - start
        self.busy_seconds += seconds
        if not finished and seconds < timeout / 2:
            raise _lost(len(self._in_flight))
        if finished or self.generator.capabilities.in_process:
            self.last_progress = time.monotonic()
        self._check_completions(finished)
        if finished:
            self._loop.call(self._deliver, finished)
        return bool(finished)

    def _check_completions(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            if completion.key not in self._in_flight:
                what = f"the generator has returned a completion of {completion.key!r}, which is not in flight"
                raise EngineError(what, need="one completion of each request", do=_DO)
            self._in_flight.remove(completion.key)

    def _deliver(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            call = self._calls.pop(completion.key)
            call.completions[completion.key] = completion
            if len(call.completions) == len(call.keys) and not call.future.done():
                call.future.set_result([call.completions[key] for key in call.keys])

    def load_weights(self, weights: Weights, version: int) -> None:
        """Give the generator new weights; requests in flight continue with them."""
        self.generator.load_weights(weights, version=version)

    def sleep(self) -> None:
        """Let the generator, which has this method, release the memory of its devices until `load_weights`."""
        cast(SupportsSleep, self.generator).sleep()

    def close(self, timeout: float) -> None:
        """Cancel all requests in flight, and discard their completions. Nothing must run in the event loop."""
        deadline = time.monotonic() + timeout
        self._new.clear()
        if cancelled := self._in_flight.union(_take_all(self._cancelled)):
            self.generator.cancel([*cancelled])
        while self._in_flight and time.monotonic() < deadline:
            finished = {completion.key for completion in self.generator.collect(timeout)}
            if not finished & self._in_flight:
                return
            self._in_flight -= finished


def _take_all(queue: deque[T]) -> list[T]:
    """All values in `queue`, to which another thread may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


_DO = "test the generator with purerl.testing.check_generator"


def _lost(missing: int) -> EngineError:
    got = f"no completion from collect(), with {missing} missing"
    need = "a completion of every request that was submitted"
    return EngineError("a generator has lost requests", got=got, need=need, do=_DO)
