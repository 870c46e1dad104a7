"""Worker processes that host environments, so that code that hangs or crashes cannot hurt the run.

Each process hosts many episodes, see `purerl.envs.worker`. A call that does not end in time fails its episode. A
process that ends, or whose watchdog ends it, fails the episodes in it; it is replaced. The processes and everything
that they have started end with the pool, and with the run, also if the run is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import evolve

from purerl.envs.episode import Episode, Tools
from purerl.envs.failures import ENVIRONMENT_FILES, EnvironmentFailure, died, timed_out
from purerl.envs.observations import checked_observation, checked_tools
from purerl.envs.process import Process
from purerl.envs.protocol import EndReason, Observation, ToolCall
from purerl.envs.worker import Answer, HostRequest, HostTask
from purerl.errors import RolloutError
from purerl.rewards.outcomes import Failure
from purerl.system.event_loop import SERVICE
from purerl.system.workers.processes import Death, end_all

__all__ = ["EnvironmentPool"]

_MAX_DEFAULT_WORKERS = 8
_MAX_FAILED_STARTS = 3  # times the number of workers, without a start that succeeds
_HEARTBEAT_GRACE = 10.0  # seconds added to the timeout of a call until a process that sends nothing is ended
_TICK = 0.5  # seconds between two checks whether all processes still answer


class EnvironmentPool:
    """Worker processes that host environments.

    name         of the environment, for messages
    num_workers  defaults to the number of CPU cores, but at most 8
    max_memory   memory limit of each process in MiB

    The processes start at once, and load the environment in the background. `open` and `close` are called in one event
    loop.
    """

    def __init__(self, name: str, task: HostTask, *, num_workers: int | None, max_memory: int | None):
        self._name, self._task, self._max_memory = name, task, max_memory
        self._num_workers = num_workers or min(os.cpu_count() or 1, _MAX_DEFAULT_WORKERS)
        self._processes = [self._new_process() for _ in range(self._num_workers)]
        self._supervising: dict[Process, asyncio.Task[None]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._numbers = itertools.count()
        self._failed_starts, self._have_started, self._is_closed = 0, False, False
        self._error: RolloutError | None = None
        self.declared = task.declared

    async def open(self) -> Episode:
        """Create an environment for one episode.

        Raises: EnvironmentFailure if it cannot be created; RolloutError if no process can be started.
        """
        for process in self._processes:
            self._supervise(process)
        episode = _HostedEpisode(await self._choose_process(), next(self._numbers), self)
        try:
            await episode.call("open")
        except BaseException:
            episode.discard()
            raise
        return episode

    async def close(self) -> None:
        """End all processes, and everything that they have started. Calls that still run fail."""
        self._is_closed = True
        processes = list(self._processes)
        for process in processes:
            process.end_soon()
        if self._ticking:
            self._ticking.cancel()
        await asyncio.gather(*self._supervising.values(), return_exceptions=True)
        await asyncio.to_thread(end_all, [process.worker for process in processes if not process.is_supervised])

    def next_number(self) -> int:
        return next(self._numbers)

    def failure_of(self, process: Process, *, was_running: bool) -> EnvironmentFailure:
        """The failure of a call in `process`, which has ended. `was_running`: the call had started."""
        death = process.death
        if self._is_closed or death is None:
            return self._closed()
        if was_running and (death.is_timed_out or process.is_late):
            stack = f"most recent call first:\n{death.stack}" if death.stack else ""
            return timed_out(self._name, self._task.timeout, stack)
        if death.is_timed_out or process.is_late:
            late = f"another episode in the same worker process blocked it for more than {self._task.timeout:g} seconds"
            return died(self._name, [late, *([f"most recent call first:\n{death.stack}"] if death.stack else [])])
        if death.invalid:
            return died(self._name, [f"the worker process sent what is no answer: {death.invalid}"])
        limit = [f"it could use {self._max_memory:,} MiB of memory"] if self._max_memory else []
        died_with = f"the worker process of this and {process.num_others} other episodes died"
        return died(self._name, [f"{died_with} with exit code {death.exit_code}", *limit])

    def invalid(self, error: ValueError) -> EnvironmentFailure:
        """A process has sent what an environment cannot return."""
        return EnvironmentFailure(Failure(self._name, "returned an invalid value", f"{error}\n"))

    def _closed(self) -> EnvironmentFailure:
        return died(self._name, ["the environments were closed"])

    def _new_process(self) -> Process:
        return Process(self._task, max_memory=self._max_memory, internal_files=ENVIRONMENT_FILES)

    def _supervise(self, process: Process) -> None:
        if not process.is_supervised:
            process.is_supervised = True
            self._supervising[process] = asyncio.create_task(self._follow(process), name=SERVICE)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick(), name=SERVICE)

    async def _choose_process(self) -> Process:
        """The process with the fewest episodes. The first time, all processes must be ready."""
        while True:
            if self._error or self._is_closed:
                raise self._error or self._closed()
            starting = [process for process in self._processes if not process.is_ready]
            ready = [process for process in self._processes if process.is_ready and not process.is_stuck]
            if ready and (self._have_started or not starting):
                self._have_started = True
                return min(ready, key=lambda process: len(process.episodes))
            self._changed.clear()
            await self._changed.wait()

    async def _follow(self, process: Process) -> None:
        """Handle the answers of `process` until it ends; replace it then."""
        async for answer in process.answers():
            if answer is None:
                continue
            if answer.number == -1:
                process.is_ready, self._failed_starts = True, 0
                self._changed.set()
                continue
            process.resolve(answer)
            if answer.is_stuck and not process.is_stuck:
                process.is_stuck = True
                self._add_process()
            if process.is_stuck and not process.episodes:
                process.end_soon()
        self._remove(process, await asyncio.to_thread(process.worker.end))

    def _add_process(self) -> None:
        if not self._is_closed and self._error is None:
            self._processes.append(self._new_process())
            self._supervise(self._processes[-1])

    def _remove(self, process: Process, death: Death) -> None:
        self._processes.remove(process)
        del self._supervising[process]
        process.has_ended(death)
        if not process.is_ready and not self._is_closed:
            self._check_starts(death, is_late=process.is_late)
        if not process.is_stuck:
            self._add_process()
        self._changed.set()

    def _check_starts(self, death: Death, *, is_late: bool) -> None:
        self._failed_starts += 1
        if is_late or self._failed_starts >= _MAX_FAILED_STARTS * self._num_workers:
            last = f"the last one ended with exit code {death.exit_code}"
            limit = f", with at most {self._max_memory:,} MiB of memory" if self._max_memory else ""
            self._error = RolloutError(
                "the worker processes of the environments cannot be started",
                got="no answer" if is_late else f"{self._failed_starts} starts in a row failed{limit}; {last}",
                need="an environment that can be imported in another process",
                do="see the messages above; the run can be resumed",
            )

    async def _tick(self) -> None:
        """End each process that sends nothing for too long, counted in ticks: a run that was stopped counts no time."""
        while True:
            await asyncio.sleep(_TICK)
            for process in self._processes:
                process.tick(max_ticks=math.ceil((self._task.timeout + _HEARTBEAT_GRACE) / _TICK))


class _HostedEpisode:
    def __init__(self, process: Process, number: int, pool: EnvironmentPool):
        self._process, self._number, self._pool = process, number, pool
        self._is_open = True
        self.tools: Tools = None
        process.episodes.add(number)

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        return self._checked(await self.call("reset", dict(example), seed))

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        return self._checked(await self.call("step", text, list(calls)))

    async def end(self, reason: EndReason, text: str) -> Observation | None:
        value = await self.call("end", reason, text)
        return None if value is None else self._checked(value, is_end=True)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                with suppress(EnvironmentFailure):  # a process that has ended needs no close
                    await self._send("close")
            finally:  # also if this is canceled, because it takes too long
                self._process.episodes.discard(self._number)
                self._process.end_if_unused()

    def discard(self) -> None:
        """Close the episode without waiting."""
        if self._is_open:
            self._is_open = False
            self._process.episodes.discard(self._number)
            self._process.send(HostRequest(self._pool.next_number(), self._number, "close"))
            self._process.end_if_unused()

    async def call(self, method: str, *arguments: Any) -> Any:
        answer = await self._send(method, *arguments)
        if isinstance(answer.result, Failure):
            raise EnvironmentFailure(answer.result)
        try:
            self.tools = self.tools if answer.tools == self.tools else checked_tools(answer.tools)
        except ValueError as error:
            raise self._pool.invalid(error) from error
        return answer.result

    def _checked(self, value: Any, *, is_end: bool = False) -> Observation:
        """`value`, checked as in the process, which code of the environment may have changed."""
        declared = evolve(self._pool.declared, has_states=False) if is_end else self._pool.declared
        try:
            if isinstance(value, Observation) and not all(type(image) is bytes for image in value.images):
                raise ValueError("images are not the bytes of files")
            return checked_observation(value, declared)
        except ValueError as error:
            raise self._pool.invalid(error) from error

    async def _send(self, method: str, *arguments: Any) -> Answer:
        if self._process.has_died:
            raise self._pool.failure_of(self._process, was_running=False)
        answer = await self._process.ask(HostRequest(self._pool.next_number(), self._number, method, arguments))
        if answer is None:
            raise self._pool.failure_of(self._process, was_running=True)
        return answer
