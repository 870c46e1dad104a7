"""A supplier of groups: draws go in, and their trajectories come out, with rewards, in any order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial

from attrs import define, evolve, field

from purerl.errors import PurerlError
from purerl.protocols import Completion, Request
from purerl.rewards.outcomes import failure_of_exception
from purerl.rollouts.engine import Ticket
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Group, Workflow

__all__ = ["Rollouts"]


@define(eq=False)
class _Running:
    """A draw whose workflow runs."""

    ticket: Ticket = field(factory=Ticket)
    task: asyncio.Task[None] | None = None


class Rollouts:
    """Runs `workflow` on draws, in the event loop of `runtime`. One thread calls all methods."""

    def __init__(self, runtime: Runtime, workflow: Workflow) -> None:
        self.runtime, self.workflow = runtime, workflow
        self._running: dict[int, _Running] = {}
        self._finished: deque[Group] = deque()
        self._num_submitted = 0

    def submit(self, draws: Sequence[Draw]) -> None:
        """Start the workflow on each of `draws`. A number must not be that of a draw in flight."""
        self._running.update((draw.number, _Running()) for draw in draws)
        self._num_submitted += len(draws)
        self.runtime.loop.call(self._start, [(draw, self._running[draw.number]) for draw in draws])

    def _start(self, draws: Sequence[tuple[Draw, _Running]]) -> None:
        for draw, running in draws:
            running.task = asyncio.get_running_loop().create_task(self._run(draw, running.ticket))

    async def _run(self, draw: Draw, ticket: Ticket) -> None:
        try:
            group = Group(draw.number, tuple(await self.workflow(draw, partial(self._generate, ticket))))
        except PurerlError as error:  # the run cannot continue
            return self.runtime.fail(error)
        except Exception as error:  # noqa: BLE001 - a missing group, which the loop counts
            failure = failure_of_exception(f"the workflow of draw {draw.number}", error)
            group = Group(draw.number, (), evolve(failure, part="workflow"))
        finally:
            if self.runtime.engine is not None and ticket.kept:
                self.runtime.engine.release(ticket)
        self._finished.append(group)
        self.runtime.wake()
        return None

    async def _generate(self, ticket: Ticket, requests: Sequence[Request]) -> list[Completion]:
        return await self.runtime.engine.generate(requests, ticket=ticket)

    def collect(self, timeout: float | None = None, *, draws: Collection[int] | None = None) -> list[Group]:
        """All groups that are finished: when all `draws` are, or when at least one group is, if no draws are named.

        Returns after `timeout` seconds in any case, and at once if no draw is in flight. With `draws`, an engine that
        decodes inside of this call completes everything that has been requested. So the weights of a completion do not
        depend on how long rewards take.
        """
        wanted = set(draws or ())

        def may_decode() -> bool:
            return any(running.ticket.requests for running in self._running.values())

        def is_done() -> bool:
            arrived = self._running.keys() & {group.draw for group in tuple(self._finished)}
            if draws is None:
                return bool(arrived) or not self._running
            return wanted <= arrived and not (self.runtime.is_in_step and may_decode())

        def waits_for() -> str:
            return f"the groups of {len(wanted or self._running)} draws, such as {next(iter(wanted or self._running))}"

        self.runtime.drive(is_done, waits_for=waits_for, timeout=timeout, may_decode=may_decode)
        groups = [self._finished.popleft() for _ in range(len(self._finished))]
        return [group for group in groups if self._running.pop(group.draw, None)]

    def cancel(self, draws: Collection[int]) -> None:
        """Stop the workflows of `draws`, and their requests. Their groups are not returned."""
        for number in draws:
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
