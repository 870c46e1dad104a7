"""A worker process: it loads reward functions, and scores the inputs that it receives.

A task whose function returns awaitables does not occupy the worker: it gets the next task while they run.

A watchdog terminates the process when a call exceeds its timeout. It works even if the function blocks the interpreter.
Before it terminates the process, it writes the stack to a status file.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import NamedTuple

from purerl.errors import EngineError
from purerl.rewards.adapters import NO_RUN, LoadedReward, RewardInput
from purerl.rewards.outcomes import (
    CallOutcomes,
    Failure,
    Outcome,
    close_reward,
    failure_of_exception,
    is_closable,
    start_calls,
)
from purerl.rewards.sources import Source, load
from purerl.system.workers.connection import open_connection, pack_answer, read_request
from purerl.system.workers.status import CALL, IDLE, Status

__all__ = ["AWAITING", "AWAIT_GRACE", "CLOSE", "CLOSE_TIMEOUT", "TIME_SLICE", "Loaded", "Report", "WorkerTask", "work"]

TIME_SLICE = 0.02  # seconds after which a worker starts no further call of its task
AWAIT_GRACE = 1.0  # seconds added to the watchdog while awaitables run, which have their own timeout
CLOSE = None  # the message after which a worker closes its functions and ends
CLOSE_TIMEOUT = 10.0  # seconds in which they must be closed
AWAITING = -1  # in the status file, in place of the index of an input; IDLE is another such value


class WorkerTask(NamedTuple):
    """Inputs to score with one reward function; `timeout` is the limit of one call in seconds."""

    number: int
    function: str
    inputs: Sequence[RewardInput]
    timeout: float


class Loaded(NamedTuple):
    """The message of a worker that has loaded the functions.

    max_inputs  maximum number of inputs of one call, by the name of the reward
    closes      whether a function is to be closed
    """

    max_inputs: Mapping[str, int]
    closes: bool


class Report(NamedTuple):
    """The message of a worker about a task. The first report ends its calls; the others follow as awaitables finish.

    number    of the task
    called    number of inputs, from the first one on, for which the function was called; None after the first report
    outcomes  outcomes by the index of the input
    """

    number: int
    called: int | None
    outcomes: Mapping[int, Outcome]


def work(connection: int, status: int) -> None:
    """Score tasks until the run closes its end of the connection. Functions are loaded outside of any timeout.

    connection  file descriptor of a socket. The first request is the sources of the functions and the length of the
                run, all others are tasks, or `CLOSE`. The worker sends `Loaded`, and then a report of each task and of
                awaitables
    status      file descriptor of the status file
    """
    worker = _Worker(open_connection(connection), Status(status))
    with suppress(EOFError, ConnectionError):
        sources, worker.length = read_request(worker.run)
        rewards = {source.name: _load(source) for source in sources}
        loaded = [reward for reward in rewards.values() if isinstance(reward, LoadedReward)]
        max_inputs = dict.fromkeys(rewards, 1) | {reward.name: reward.convention.max_inputs for reward in loaded}
        closes = any(is_closable(reward.function) for reward in loaded)
        worker.run.sendall(pack_answer(Loaded(max_inputs, closes)))
        while (task := read_request(worker.run)) is not CLOSE:
            worker.score(rewards[task.function], task)
        for reward in loaded:
            close_reward(reward, timeout=CLOSE_TIMEOUT)


def _load(source: Source) -> LoadedReward | Failure:
    try:
        return load(source)
    except BaseException as error:  # noqa: BLE001 -- reported for each row, like an exception of the function
        return failure_of_exception(source.name, error)


class _Worker:
    """Scores tasks, and sends the reports. Awaitables finish in the thread of their event loop."""

    def __init__(self, run: socket.socket, status: Status):
        self.run, self._status, self.length = run, status, NO_RUN
        self._open: dict[int, int] = {}  # the number of awaitables that have not finished, by the number of their task
        self._lock = RLock()

    def score(self, reward: LoadedReward | Failure, task: WorkerTask) -> None:
        """Call `reward` until the time slice is over, and report."""
        if isinstance(reward, Failure):
            self._send(
                task.function, Report(task.number, len(task.inputs), dict.fromkeys(range(len(task.inputs)), reward))
            )
            return
        size = reward.convention.max_inputs
        calls = {k * size: call for k, call in enumerate(self._call(reward, task))}
        futures = {start: call for start, call in calls.items() if isinstance(call, Future)}
        values = ((start, call) for start, call in calls.items() if not isinstance(call, Future))
        outcomes = {start + k: outcome for start, call in values for k, outcome in enumerate(call)}
        if futures:
            self._open[task.number] = len(futures)
        else:
            self._status.write_index(IDLE)
        self._send(task.function, Report(task.number, min(len(calls) * size, len(task.inputs)), outcomes))
        self._status.write_index(IDLE)
        for start, future in futures.items():
            future.add_done_callback(partial(self._finish, task, start))

    def _call(self, reward: LoadedReward, task: WorkerTask) -> list[CallOutcomes]:
        def before_call(index: int) -> None:
            self._status.write_index(index)
            if index >= 0:
                self._status.start_watchdog(CALL, task.timeout)
            else:  # awaitables have their own timeout
                self._status.start_watchdog(task.number, task.timeout + AWAIT_GRACE)
                self._status.stop_watchdog(CALL)

        stop_at = time.monotonic() + TIME_SLICE
        try:
            limits = {"timeout": task.timeout, "stop_at": stop_at}
            return start_calls(reward, task.inputs, length=self.length, before_call=before_call, **limits)
        finally:
            self._status.stop_watchdog(CALL)

    def _finish(self, task: WorkerTask, start: int, future: Future[list[Outcome]]) -> None:
        """Report the outcomes of an awaitable of `task`, for the inputs from `start` on."""
        with self._lock:
            self._open[task.number] -= 1
            if not self._open[task.number]:
                del self._open[task.number]
                self._status.stop_watchdog(task.number)
        with suppress(ConnectionError):
            self._send(task.function, Report(task.number, None, dict(enumerate(future.result(), start=start))))

    def _send(self, function: str, report: Report) -> None:
        with suppress(Exception):
            sys.stdout.flush()  # what a function has printed is not lost when the worker is killed
        data = _packed(function, report)
        with self._lock:
            self.run.sendall(data)


def _packed(function: str, report: Report) -> bytes:
    """`report` for the run, with a failure in place of each outcome that cannot be sent."""
    try:
        return pack_answer(report)
    except EngineError as error:
        sent = {index: _sendable(function, outcome) for index, outcome in report.outcomes.items()}
        if sent == report.outcomes:  # they are too large together
            sent = dict.fromkeys(sent, Failure(function, "returned an invalid value", f"{error}\n"))
        return pack_answer(report._replace(outcomes=sent))


def _sendable(function: str, outcome: Outcome) -> Outcome:
    try:
        pack_answer(outcome)
    except EngineError as error:
        return Failure(function, "returned an invalid value", f"{error}\n")
    return outcome
