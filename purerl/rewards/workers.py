"""Worker processes for reward functions, so that a function that hangs or crashes fails only its own rows.

A task contains many inputs. A worker processes them in order until its time slice is over, and returns the rest to be
distributed again. Fast functions have little communication overhead, and slow ones are balanced over the workers.

A worker that ends is replaced. The input of the call during which it ended gets a `Failure`, and the other inputs of
its task are processed again. Each worker has a connection and a guard of its own, so workers do not depend on each
other: any number of them may be killed at any moment.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import NamedTuple

from purerl.errors import RewardError
from purerl.rewards.adapters import LoadedReward, RewardInput
from purerl.rewards.outcomes import INTERNAL_FILES, Failure, Outcome, shorten
from purerl.rewards.worker import AWAIT_GRACE, TIME_SLICE, WorkerTask
from purerl.workers.processes import Death, Worker, end_all
from purerl.workers.status import IDLE

__all__ = ["WorkerPool"]

_WORK = "purerl.rewards.worker:work"
_MAX_DEFAULT_WORKERS = 8
_MAX_TASK_SIZE = 256
_KILL_GRACE = 2.0  # seconds until the run ends a worker whose watchdog did not work
_MAX_IDLE_DEATHS = 2  # times that a task is given to another worker because a worker ended before it made a call
_MAX_FAILED_STARTS = 3  # times the number of workers, without a start that succeeds


class _Task(NamedTuple):
    """Inputs, by their row in the list of all inputs, that one worker scores with one reward function.

    `idle_deaths` counts the workers that got the task and ended before they made a call.
    """

    function: str
    rows: Sequence[int]
    idle_deaths: int = 0


_Outcomes = dict[tuple[str, int], Outcome]  # by the name of the function and the row


class WorkerPool:
    """Worker processes that run the functions of `rewards`.

    `num_workers` defaults to the number of CPU cores, but at most 8. `timeout` is the time limit of one call in
    seconds, `max_memory` the memory limit of each process in MiB. Call `start` before `score`, and `close` at the end.
    """

    def __init__(
        self,
        rewards: Sequence[LoadedReward],
        *,
        num_workers: int | None,
        timeout: float,
        max_memory: int | None = None,
    ):
        self._max_inputs = {reward.name: reward.convention.max_inputs for reward in rewards}
        self._num_workers = num_workers or min(os.cpu_count() or 1, _MAX_DEFAULT_WORKERS)
        self._timeout, self._max_memory = timeout, max_memory
        self._tasks: dict[Worker, _Task | None] = {}  # what each worker is doing
        self._failed_starts = 0

    def start(self) -> None:
        """Start the worker processes. They load the functions in the background."""
        while len(self._tasks) < self._num_workers:
            self._tasks[self._new_worker()] = None

    def _new_worker(self) -> Worker:
        names = tuple(self._max_inputs)
        return Worker(_WORK, names, max_memory=self._max_memory, internal_files=INTERNAL_FILES)

    def close(self) -> None:
        """End the worker processes and everything that they have started."""
        end_all(self._tasks)
        self._tasks.clear()

    def score(
        self, inputs: Sequence[RewardInput], on_failure: Callable[[int, Failure], None] = lambda row, failure: None
    ) -> dict[str, list[Outcome]]:
        """Call every function on all `inputs`. Returns a list of outcomes per function, in the order of `inputs`.

        `on_failure` is called with the row of each failure as soon as it is known.

        Raises: RewardError if the worker processes cannot be started.
        """
        outcomes: _Outcomes = {}
        pending = deque(task for name in self._max_inputs for task in self._make_tasks(name, range(len(inputs))))
        try:
            while pending or any(self._tasks.values()):
                self.start()
                self._assign(pending, inputs)
                for new_outcomes, new_tasks in self._collect():
                    outcomes |= new_outcomes
                    pending += new_tasks
                    for (_, row), outcome in new_outcomes.items():
                        if isinstance(outcome, Failure):
                            on_failure(row, outcome)
        except BaseException:
            self._end([worker for worker, task in self._tasks.items() if task])  # their results are not wanted anymore
            raise
        return {name: [outcomes[name, row] for row in range(len(inputs))] for name in self._max_inputs}

    def _make_tasks(self, name: str, rows: Sequence[int]) -> list[_Task]:
        """Split `rows` into one task per worker, or into more tasks if these would be too large."""
        size = math.ceil(len(rows) / self._num_workers)
        size = size if self._max_inputs[name] > 1 else min(size, _MAX_TASK_SIZE)
        return [_Task(name, rows[start : start + size]) for start in range(0, len(rows), size or 1)]

    def _assign(self, pending: deque[_Task], inputs: Sequence[RewardInput]) -> None:
        """Give the first tasks of `pending` to the workers that have nothing to do."""
        seconds = self._timeout + TIME_SLICE + AWAIT_GRACE + _KILL_GRACE
        for worker, current in self._tasks.items():
            if pending and current is None and worker.is_ready:
                task = self._tasks[worker] = pending.popleft()
                selected = [inputs[row] for row in task.rows]
                worker.send(WorkerTask(task.function, selected, self._timeout), seconds=seconds)

    def _collect(self) -> Iterator[tuple[_Outcomes, list[_Task]]]:
        """Wait until a worker sends something, ends, or is late. Yields outcomes, and tasks for the remaining rows."""
        waiting = [worker for worker, task in self._tasks.items() if task or not worker.is_ready]
        deadline = min(worker.deadline for worker in waiting)
        sources = [source for worker in waiting for source in (worker.connection, worker.sentinel)]
        sources += [worker.sentinel for worker in self._tasks if worker not in waiting]
        ready = wait(sources, timeout=max(0.0, deadline - time.monotonic()))
        for worker in list(self._tasks):
            task = self._tasks[worker]
            outcomes = worker.receive() if worker.connection in ready else None
            if outcomes is not None and task is not None:
                self._tasks[worker] = None
                yield self._finish(task, outcomes)
            elif worker.sentinel in ready:
                yield self._replace(worker)
            elif worker in waiting and time.monotonic() > worker.deadline:
                yield self._replace(worker, is_late=True)
            elif worker.is_ready:
                self._failed_starts = 0

    def _finish(self, task: _Task, outcomes: Sequence[Outcome]) -> tuple[_Outcomes, list[_Task]]:
        finished = dict(zip(((task.function, row) for row in task.rows), outcomes, strict=False))
        rest = task.rows[len(outcomes) :]
        return finished, [_Task(task.function, half) for half in (rest[::2], rest[1::2]) if half]

    def _end(self, workers: Sequence[Worker]) -> None:
        end_all(workers)
        for worker in workers:
            del self._tasks[worker]

    def _replace(self, worker: Worker, *, is_late: bool = False) -> tuple[_Outcomes, list[_Task]]:
        """Remove a worker that has ended or is late. Yields what follows from it for its task."""
        task, death = self._tasks.pop(worker), worker.end()
        if not worker.is_ready:
            self._check_starts(death, is_late=is_late)
        if task is None:
            return {}, []
        if death.index == IDLE and task.idle_deaths < _MAX_IDLE_DEATHS:
            return {}, [task._replace(idle_deaths=task.idle_deaths + 1)]
        if death.index < 0 and len(task.rows) > 1:  # the call is unknown
            return {}, [_Task(task.function, [row]) for row in task.rows]
        failed = task.rows[max(death.index, 0) :][: self._max_inputs[task.function]]
        rest = [row for row in task.rows if row not in failed]
        failure = self._failure(task.function, death, is_late=is_late)
        new_tasks = self._make_tasks(task.function, rest) if rest else []
        return {(task.function, row): failure for row in failed}, new_tasks

    def _failure(self, function: str, death: Death, *, is_late: bool) -> Failure:
        if death.is_timed_out or is_late:
            stack = f"; most recent call first:\n{death.stack}" if death.stack else "\n"
            return Failure(function, "timed out", shorten(f"took longer than {self._timeout:g} seconds{stack}"))
        limit = f"; it could use {self._max_memory:,} MiB of memory" if self._max_memory else ""
        return Failure(function, "died", f"the worker process died with exit code {death.exit_code}{limit}\n")

    def _check_starts(self, death: Death, *, is_late: bool) -> None:
        """Raise RewardError if no worker can load the functions."""
        self._failed_starts += 1
        if is_late or self._failed_starts >= _MAX_FAILED_STARTS * self._num_workers:
            limit = f", with at most {self._max_memory:,} MiB of memory" if self._max_memory else ""
            raise RewardError(
                "the worker processes of the reward functions cannot be started",
                got="no answer"
                if is_late
                else f"{self._failed_starts} starts in a row failed{limit}; the last one "
                f"ended with exit code {death.exit_code}",
                need="modules of the reward functions that can be imported in another process",
                do="see the messages above; the run can be resumed",
            )
