"""A worker process: it loads reward functions, and scores the inputs that it receives.

A watchdog terminates the process when a call exceeds its timeout. It works even if the function blocks the interpreter.
Before it terminates the process, it writes the stack to a status file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from purerl.rewards.adapters import LoadedReward, RewardInput, load_reward
from purerl.rewards.outcomes import Failure, Outcome, call_reward, failure_of_exception
from purerl.workers.status import IDLE, Status

__all__ = ["AWAITING", "AWAIT_GRACE", "TIME_SLICE", "WorkerTask", "work"]

TIME_SLICE = 0.1  # seconds after which a worker starts no further call of its task
AWAIT_GRACE = 1.0  # seconds added to the watchdog while awaitables run, which have their own timeout
AWAITING = -1  # in the status file, in place of the index of an input; IDLE is another such value


class WorkerTask(NamedTuple):
    """Inputs to score with one reward function; `timeout` is the limit of one call in seconds."""

    function: str
    inputs: Sequence[RewardInput]
    timeout: float


def work(connection: int, status: int) -> None:
    """Score tasks until the run closes its end of the connection. Functions are loaded outside of any timeout.

    connection  file descriptor of a socket. The first message is the names of the functions, all others are tasks. The
                worker sends None when it has loaded the functions, and then the outcomes of each task
    status      file descriptor of the status file
    """
    run, status_file = Connection(connection), Status(status)
    try:
        rewards = {name: _load(name) for name in run.recv()}
        message: Any = None
        while True:
            run.send(message)
            task = run.recv()
            message = _score(rewards[task.function], task, status_file)
            with suppress(Exception):
                sys.stdout.flush()  # what a function has printed is not lost when the worker is killed
    except (EOFError, ConnectionError):
        return


def _load(name: str) -> LoadedReward | Failure:
    try:
        return load_reward(name)
    except BaseException as error:  # noqa: BLE001 -- reported for each row, like an exception of the function
        return failure_of_exception(name, error)


def _score(reward: LoadedReward | Failure, task: WorkerTask, status: Status) -> list[Outcome]:
    if isinstance(reward, Failure):
        return [reward] * len(task.inputs)

    def before_call(index: int) -> None:
        status.write_index(index)
        if index == AWAITING:  # awaitables have their own timeout
            status.stop_watchdog()
        status.start_watchdog(task.timeout if index >= 0 else task.timeout + AWAIT_GRACE)

    try:
        stop_at = time.monotonic() + TIME_SLICE
        return call_reward(reward, task.inputs, timeout=task.timeout, before_call=before_call, stop_at=stop_at)
    finally:
        status.stop_watchdog()
        status.write_index(IDLE)
