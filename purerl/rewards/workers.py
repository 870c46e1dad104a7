"""Worker processes for reward functions, so that a function that hangs or crashes fails only its own rows.

A thread gives tasks to the workers and takes their reports. A task contains several inputs, of one or more jobs. A
worker processes them in order until its time slice is over, and returns the rest to be distributed again. Fast
functions have little communication overhead, and slow ones are balanced over the workers. If a call takes much longer
than a time slice, the other inputs of its task are given to other workers.

A worker that ends is replaced. The input of the call during which it ended gets a `Failure`, and the other inputs of
its task are processed again. If several calls may be the reason, each is made again on a worker that does nothing else.
Each worker has a connection and a guard of its own, so workers do not depend on each other: any number of them may be
killed at any moment.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from multiprocessing.connection import wait

from attrs import define, field

from purerl.errors import EngineError, RewardError
from purerl.rewards.adapters import NO_RUN, RewardInput, RunLength
from purerl.rewards.jobs import Job, Outcomes, Part, Queue, Task
from purerl.rewards.outcomes import INTERNAL_FILES, Failure, shorten
from purerl.rewards.reports import check_loaded, check_report
from purerl.rewards.sources import Source, seconds_of
from purerl.rewards.worker import AWAIT_GRACE, AWAITING, CLOSE, CLOSE_TIMEOUT, TIME_SLICE, Loaded, Report, WorkerTask
from purerl.system.workers.processes import Death, Worker, end_all
from purerl.system.workers.status import IDLE

__all__ = ["WorkerPool", "default_num_workers"]

_WORK = "purerl.rewards.worker:work"
_MAX_DEFAULT_WORKERS = 8
_MAX_AWAITING = 256  # inputs whose awaitables run in one worker at the same time, before it gets another task
_MAX_DELAY = 0.2  # seconds for which a call may delay the other inputs of its task
_KILL_GRACE = 2.0  # seconds until the run ends a worker whose watchdog did not work
_MAX_IDLE_DEATHS = 2  # times that a part is given to another worker because a worker ended before it made a call
_MAX_FAILED_STARTS = 3  # times the number of workers, without a start that succeeds


@define
class _Load:
    """The task whose calls a worker makes, those whose awaitables run, and whether it has functions to be closed."""

    current: Task | None = None
    awaiting: dict[int, Task] = field(factory=dict)
    closes: bool = False

    @property
    def tasks(self) -> list[Task]:
        return [*self.awaiting.values(), *([self.current] if self.current else [])]

    @property
    def can_take(self) -> bool:
        parts = [part for task in self.awaiting.values() for part in task.remaining]
        full = sum(len(part.inputs) for part in parts) >= _MAX_AWAITING
        return self.current is None and not full and not any(part.is_alone for part in parts)


def default_num_workers() -> int:
    """The number of worker processes of a host if nothing sets it."""
    return min(os.cpu_count() or 1, _MAX_DEFAULT_WORKERS)


class WorkerPool:
    """Worker processes that load `sources` and run their functions, as a service for any number of threads.

    `num_workers` defaults to the number of CPU cores, but at most 8. `timeout` is the time limit of one call in
    seconds, of functions that have none of their own, and `max_memory` the memory limit of each process in MiB. Call
    `start` before `submit`, and `close` at the end.
    """

    def __init__(
        self, sources: Sequence[Source], *, num_workers: int | None, timeout: float, max_memory: int | None = None
    ):
        self._sources = tuple(sources)
        self._num_workers = num_workers or default_num_workers()
        self._timeouts = {source.name: seconds_of(source, timeout) for source in sources}
        self._max_memory = max_memory
        self._thread: threading.Thread | None = None

    def start(self, length: RunLength = NO_RUN) -> None:
        """Start the worker processes. They load the functions in the background. Without effect if they run.

        `length` is that of the run.
        """
        if self._thread is not None:
            return
        self._length = length
        self._loads: dict[Worker, _Load] = {}
        self._numbers = count()
        self._jobs: dict[int, Job] = {}  # those that have no outcomes yet, by their number
        self._queue = Queue(self._jobs)
        self._submitted: deque[Job] = deque()  # those that the thread has not seen yet
        self._finished: deque[Job] = deque()  # those whose outcomes have not been delivered yet
        self._failed_starts = 0
        self._wakeup, self._waker = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._waker, False)
        self._is_woken, self._is_closing = False, False
        self._start_workers()
        self._thread = threading.Thread(target=self._serve, name="purerl reward workers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the worker processes and everything that they have started. Jobs without outcomes are cancelled."""
        if self._thread is None:
            return
        self._is_closing = True
        self.wake()
        self._thread.join()
        self._thread = None
        self._close_functions()
        end_all(self._loads)
        for job in [*self._jobs.values()]:
            job.future.cancel()
        os.close(self._wakeup)
        os.close(self._waker)

    def _close_functions(self) -> None:
        """Let the workers that make no call close their functions, and wait until they have ended."""
        workers = [worker for worker, load in self._loads.items() if load.closes and load.current is None]
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for worker in workers:
            worker.send(CLOSE, seconds=CLOSE_TIMEOUT)
        waiting = {worker.sentinel for worker in workers}
        while waiting and (seconds := deadline - time.monotonic()) > 0:
            waiting -= {*wait(waiting, timeout=seconds)}

    def submit(self, inputs: Mapping[str, Sequence[RewardInput]]) -> Future[Outcomes]:
        """Let functions be called on their `inputs`, as soon as `wake` is called.

        The result is a list of outcomes per function with inputs, in the order of these. To cancel the future drops
        what has not been given to a worker. Jobs are given to workers in the order in which they are submitted.

        Raises: RewardError, by the future, if the worker processes cannot be started.
        """
        if self._thread is None:
            raise RuntimeError("the worker processes have not been started")
        job = Job(next(self._numbers), inputs, self._finished.append)
        self._jobs[job.number] = job
        job.future.add_done_callback(lambda future, jobs=self._jobs, number=job.number: jobs.pop(number, None))
        self._submitted.append(job)
        return job.future

    def wake(self) -> None:
        """Let the thread see the jobs that were submitted."""
        if not self._is_woken:
            self._is_woken = True
            with suppress(BlockingIOError):
                os.write(self._waker, b"\0")

    def _serve(self) -> None:
        while not self._is_closing:
            try:
                while self._submitted and self._queue.is_open:
                    self._queue.add_job(self._submitted.popleft())
                if self._submitted or self._queue.head():
                    self._start_workers()
                self._assign()
                while self._finished:  # after the workers have something to do
                    self._finished.popleft().deliver()
                self._collect()
            except BaseException as error:  # noqa: BLE001 -- raised where the outcomes are awaited
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for job in [*self._jobs.values()]:
            job.fail(error)
            with suppress(ValueError):  # the thread has seen it already
                self._submitted.remove(job)
        loads, self._loads = self._loads, {}
        end_all(loads)

    def _start_workers(self) -> None:
        first = (self._sources, self._length)
        options = {"max_memory": self._max_memory, "internal_files": INTERNAL_FILES}
        while len(self._loads) < self._num_workers:
            self._loads[Worker(_WORK, first, answer=Loaded | Report, **options)] = _Load()

    def _assign(self) -> None:
        """Give the first parts that wait to the workers that have nothing to do."""
        shares: dict[str, int] = {}
        for worker, load in self._loads.items():
            head = self._queue.head()
            if head is None:
                return
            if not (worker.is_ready and load.can_take) or (head.is_alone and load.awaiting):
                continue
            name = head.function
            size = shares.setdefault(name, self._queue.share(name, self._num_workers))
            self._send(worker, load, Task(next(self._numbers), name, *self._queue.take(name, size)))

    def _send(self, worker: Worker, load: _Load, task: Task) -> None:
        timeout = self._timeouts[task.function]
        seconds = timeout + TIME_SLICE + AWAIT_GRACE + _KILL_GRACE
        try:
            worker.send(WorkerTask(task.number, task.function, task.inputs, timeout), seconds=seconds)
        except Exception as error:  # noqa: BLE001 -- an input cannot be pickled
            if len(task.parts) == 1:
                task.parts[0].job.fail(error)
            else:
                self._retry_alone(task.parts)
            self.wake()
            return
        now = time.monotonic()
        task.deadline = now + seconds
        task.overdue = now + _MAX_DELAY if len(task.parts) > 1 and not task.is_one_call else math.inf
        load.current = task

    def _collect(self) -> None:
        """Wait until a worker sends something, ends, or is late, or until a job is submitted."""
        times = [self._deadline(worker, load) for worker, load in self._loads.items()]
        times += [load.current.overdue for load in self._loads.values() if load.current]
        earliest = min(times, default=math.inf)
        timeout = None if earliest == math.inf else max(0.0, earliest - time.monotonic())
        sources = [source for worker in self._loads for source in (worker.connection, worker.sentinel)]
        ready = set(wait([self._wakeup, *sources], timeout=timeout))
        with suppress(BlockingIOError):
            os.read(self._wakeup, 4096)
        self._is_woken = False  # jobs that are submitted from now on write to the pipe; all others are seen soon
        now = time.monotonic()
        for worker, load in [*self._loads.items()]:
            if worker.connection in ready and self._receive(worker, load):
                continue
            if worker.sentinel in ready:
                self._replace(worker)
            elif now > self._deadline(worker, load):
                self._replace(worker, is_late=True)
            elif load.current and now > load.current.overdue:
                self._release(worker, load.current)

    def _receive(self, worker: Worker, load: _Load) -> bool:
        """Handle what `worker` has sent. Returns whether it has sent anything; what is invalid ends it."""
        answers = worker.receive()
        self._failed_starts = 0 if worker.is_ready else self._failed_starts
        try:
            for answer in answers:
                if isinstance(answer, Loaded):
                    self._begin(load, answer)
                else:
                    self._finish(load, answer)
        except EngineError as error:
            worker.refuse(error)
        return bool(answers)

    def _deadline(self, worker: Worker, load: _Load) -> float:
        return worker.deadline if not worker.is_ready else min((task.deadline for task in load.tasks), default=math.inf)

    def _begin(self, load: _Load, loaded: Loaded) -> None:
        """Take jobs, now that a worker has loaded the functions and their calling conventions are known."""
        check_loaded(loaded, self._timeouts)
        load.closes = loaded.closes
        if not self._queue.is_open:
            self._queue.open(loaded.max_inputs)

    def _finish(self, load: _Load, report: Report) -> None:
        """Set the outcomes of `report`, and distribute the inputs again that the worker has returned."""
        current = load.current if load.current and load.current.number == report.number else None
        task = current or load.awaiting.get(report.number)
        if task is None:
            return  # a task that it does not have
        check_report(report, task)
        again = task.finish(report.outcomes)
        self._retry_alone(again)
        if current is not None and report.called is not None:
            load.current = None
            self._queue.adapt_size(task.function, called=report.called, given=len(task.parts))
            self._queue.add(task.split(report.called))
            if task.remaining and not again:
                task.deadline = time.monotonic() + self._timeouts[task.function] + AWAIT_GRACE + _KILL_GRACE
                load.awaiting[task.number] = task
        elif again or not task.remaining:
            load.awaiting.pop(task.number, None)

    def _release(self, worker: Worker, task: Task) -> None:
        """Distribute all parts of `task` again, except for that of the current call, which takes long."""
        current = task.parts_of_call(worker.index())
        task.overdue = math.inf if current else time.monotonic() + _MAX_DELAY
        if current:
            self._queue.add(part for part in task.remaining if part not in current)
            task.parts = current

    def _retry_alone(self, parts: Iterable[Part]) -> None:
        for part in parts:
            part.is_alone = True
            self._queue.add([part])

    def _replace(self, worker: Worker, *, is_late: bool = False) -> None:
        """Remove a worker that has ended or is late. The part that is the reason fails; all others are retried."""
        load, death = self._loads.pop(worker), worker.end()
        if not worker.is_ready:
            self._check_starts(death, is_late=is_late)
        parts = [part for task in load.tasks for part in task.remaining]
        suspects = _suspects(load, death)
        if len(suspects) == 1:
            [part] = suspects
            part.finish([self._failure(part.function, death, is_late=is_late)] * len(part.inputs))
        else:
            self._retry_alone(suspects)
        self._queue.add(part for part in parts if part not in suspects)

    def _failure(self, function: str, death: Death, *, is_late: bool) -> Failure:
        if death.is_timed_out or is_late:
            stack = f"; most recent call first:\n{death.stack}" if death.stack else "\n"
            return Failure(
                function, "timed out", shorten(f"took longer than {self._timeouts[function]:g} seconds{stack}")
            )
        if death.invalid:
            return Failure(function, "died", shorten(f"the worker process sent what is no answer: {death.invalid}\n"))
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


def _suspects(load: _Load, death: Death) -> list[Part]:
    """The parts that may be the reason for the end of their worker."""
    called: list[Part] = []
    if load.current is not None:
        called = _called(load.current, death.index)
        if called and death.is_timed_out and not death.is_awaiting:
            return [part for part in called if part.outcomes is None]
    awaited = [part for task in load.awaiting.values() for part in task.remaining]
    parts = awaited if death.is_timed_out and death.is_awaiting and death.index != AWAITING else [*awaited, *called]
    return [part for part in parts if part.outcomes is None]


def _called(task: Task, index: int) -> list[Part]:
    """The parts of `task` for which a call was in progress, as far as the index in the status file shows."""
    if parts := task.parts_of_call(index):
        return parts
    if index == IDLE and task.parts[0].idle_deaths < _MAX_IDLE_DEATHS:
        for part in task.parts:
            part.idle_deaths += 1
        return []
    return [*task.parts]
