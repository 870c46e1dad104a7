"""A supplier of groups: draws go in, and their trajectories come out, with rewards, in any order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial

from attrs import define, evolve, field

from purerl.errors import ImageError, InputError, PurerlError
from purerl.expert_routes import RouteStore
from purerl.protocols import Completion, Request
from purerl.rewards.outcomes import Failure, failure_of_exception
from purerl.rollouts.engine import Ticket
from purerl.rollouts.row_routes import store_routes
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Group, Workflow

__all__ = ["Rollouts"]


@define(eq=False)
class _Running:
    """A draw whose workflow runs, or whose group has not been collected."""

    ticket: Ticket = field(factory=Ticket)
    task: asyncio.Task[None] | None = None


class Rollouts:
    """Runs `workflow` on draws, in the event loop of `runtime`. One thread calls all methods.

    The experts of rows go into the store `routes`, if there is one, when their group is collected.
    """

    def __init__(self, runtime: Runtime, workflow: Workflow, routes: RouteStore | None = None) -> None:
        self.runtime, self.workflow, self.routes = runtime, workflow, routes
        self._running: dict[int, _Running] = {}
        self._finished: deque[tuple[_Running, Group]] = deque()  # the event loop appends
        self._wake_is_due = False  # used in the event loop only
        self._arrived: dict[int, Group] = {}  # of draws in flight
        self._num_submitted = 0

    def submit(self, draws: Sequence[Draw]) -> None:
        """Start the workflow on each of `draws`. Raises InputError for a number that is in flight."""
        started = [(draw, _Running()) for draw in draws]
        for draw, running in started:
            if draw.number in self._running:
                need = "a number that no draw in flight has"
                raise InputError(f"draw {draw.number}", got="a number that is in flight", need=need)
            self._running[draw.number] = running
        self._num_submitted += len(draws)
        self.runtime.loop.call(self._start, started)

    def _start(self, draws: Sequence[tuple[Draw, _Running]]) -> None:
        for draw, running in draws:
            running.task = asyncio.get_running_loop().create_task(self._run(draw, running))

    async def _run(self, draw: Draw, running: _Running) -> None:
        try:
            group = Group(draw.number, tuple(await self.workflow(draw, partial(self._generate, running.ticket))))
        except GeneratorExit:  # the event loop is closed, and nobody waits for the group
            raise
        except BaseException as error:  # SystemExit of a tool, for example, is a missing group too
            if isinstance(error, asyncio.CancelledError) and running.task is not None and running.task.cancelling():
                raise
            if isinstance(error, ImageError):
                failure = Failure(f"an image of draw {draw.number}", "failed", f"{error}\n", part="data")
            elif fatal := _fatal(error):
                return self.runtime.fail(fatal)
            else:
                failure = failure_of_exception(f"the workflow of draw {draw.number}", error)
                failure = evolve(failure, part="workflow")
            group = Group(draw.number, (), failure)
        finally:
            if self.runtime.engine is not None:
                self.runtime.engine.release(running.ticket)
        self._finished.append((running, group))
        if not self._wake_is_due:  # one call for all groups that finish in this turn of the event loop
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._wake)
        return None

    def _wake(self) -> None:
        self._wake_is_due = False
        self.runtime.wake()

    async def _generate(self, ticket: Ticket, requests: Sequence[Request]) -> list[Completion]:
        return await self.runtime.engine.generate(requests, ticket=ticket)

    def collect(
        self, timeout: float | None = None, *, draws: Collection[int] | None = None, since: float | None = None
    ) -> list[Group]:
        """All groups that are finished: when all `draws` are, or when at least one group is, if no draws are named.

        Returns after `timeout` seconds in any case, and at once if no draw is in flight. With `draws`, an engine that
        decodes inside of this call completes everything that has been requested. So the weights of a completion do not
        depend on how long rewards take. `since` as in `Runtime.drive`.
        """
        missing = (self._running.keys() & set(draws or ())) - self._arrived.keys()

        def is_done() -> bool:
            missing.difference_update(self._receive())
            if draws is None:
                return bool(self._arrived) or not self._running
            return not missing and not self.runtime.may_decode

        def waits_for() -> str:
            numbers = missing or self._running
            return f"the groups of {len(numbers)} draws, such as {min(numbers)}"

        self.runtime.drive(is_done, waits_for=waits_for, timeout=timeout, since=since)
        groups, self._arrived = [store_routes(group, self.routes) for group in self._arrived.values()], {}
        for group in groups:
            del self._running[group.draw]
        return groups

    def _receive(self) -> list[int]:
        """Keep the groups that have finished since the last call, except those of cancelled draws."""
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        groups = [group for running, group in finished if self._running.get(group.draw) is running]
        self._arrived.update((group.draw, group) for group in groups)
        return [group.draw for group in groups]

    def cancel(self, draws: Collection[int]) -> None:
        """Stop the workflows of `draws`, and their requests. Their groups are not returned."""
        for number in draws:
            self._arrived.pop(number, None)
            self.runtime.loop.call(_cancel, self._running.pop(number))

    @property
    def in_flight(self) -> list[int]:
        """The numbers of the draws whose groups have not been collected."""
        return [*self._running]

    def progress(self) -> tuple[int, int]:
        """The numbers of draws that were (collected or cancelled, submitted)."""
        return self._num_submitted - len(self._running), self._num_submitted


def _cancel(running: _Running) -> None:
    if running.task is not None:
        running.task.cancel()


def _fatal(error: BaseException) -> PurerlError | None:
    """The error of purerl that `error` is, or that is in this group of exceptions: the run cannot continue."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_fatal, error.exceptions)), None)
    return error if isinstance(error, PurerlError) else None
