"""Worker processes for reward functions, so that a function that hangs or crashes fails only its own rows.

A task contains many inputs. A worker processes them in order until its time slice is over, and returns the rest to be
distributed again. Fast functions have little communication overhead, and slow ones are balanced over the workers.

A watchdog in each worker terminates the process when a call exceeds its timeout. It works even if the function blocks
the interpreter or the parent process has died. Before it terminates the process, it writes the stack to a status file.
All processes that the function has started are terminated with the worker. The input of the failed call gets a
`Failure`. The other inputs of the task are processed again by another worker.
"""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pebble import ProcessExpired, ProcessPool

from purerl.errors import RewardError
from purerl.rewards.adapters import LoadedReward, RewardInput, load_reward
from purerl.rewards.outcomes import INTERNAL_FILES, Failure, FailureKind, Outcome, call_reward, shorten

__all__ = ["WorkerPool"]

_MAX_DEFAULT_WORKERS = 8
_MAX_TASK_SIZE = 256
_TIME_SLICE = 0.1  # seconds after which a worker starts no further call of its task
_AWAIT_GRACE = 1.0  # seconds added to the watchdog while awaitables run, which have their own timeout
_KILL_GRACE = 2.0  # seconds until the parent kills a worker whose watchdog did not work

_CLOSING = "closing"  # a file in the status directory: the workers have to end
_HIDDEN_FILES = ("/pebble/", "/multiprocessing/", "/asyncio/", "/concurrent/", "/threading.py", "<string>")


class _Task(NamedTuple):
    """Inputs, by their row in the list of all inputs, that one worker scores with one reward function."""

    function: str
    rows: Sequence[int]


_Outcomes = dict[tuple[str, int], Outcome]  # by the name of the function and the row


class WorkerPool:
    """Worker processes that run the functions of `rewards`.

    `num_workers` defaults to the number of CPU cores, but at most 8. `timeout` is the time limit of one call in
    seconds. Call `start` before `score`, and `close` at the end.
    """

    def __init__(self, rewards: Sequence[LoadedReward], *, num_workers: int | None, timeout: float):
        self._max_inputs = {reward.name: reward.convention.max_inputs for reward in rewards}
        self._num_workers = num_workers or min(os.cpu_count() or 1, _MAX_DEFAULT_WORKERS)
        self._timeout = timeout
        self._pool: ProcessPool | None = None
        self._status_directory: tempfile.TemporaryDirectory | None = None

    def start(self) -> None:
        """Start the worker processes. They load the functions in the background."""
        self._status_directory = tempfile.TemporaryDirectory(prefix="purerl-rewards-")
        arguments = (tuple(self._max_inputs), self._status_directory.name)
        context = _WorkerContext()
        self._pool = ProcessPool(self._num_workers, initializer=_initialize_worker, initargs=arguments, context=context)
        _ = self._pool.active  # reading this property starts the pool

    def close(self) -> None:
        """Terminate the worker processes and everything that they have started."""
        if self._pool is None:
            return
        directory = Path(self._status_directory.name)
        (directory / _CLOSING).touch()
        self._pool.stop()
        self._pool.join()
        self._pool = None
        for status_file in directory.glob("[0-9]*"):
            _kill_group(int(status_file.name))
        self._status_directory.cleanup()

    def score(self, inputs: Sequence[RewardInput]) -> dict[str, list[Outcome]]:
        """Call every function on all `inputs`. Returns a list of outcomes per function, in the order of `inputs`.

        Raises: RewardError if the worker processes cannot run.
        """
        outcomes: _Outcomes = {}
        running: dict[Future[Any], _Task] = {}
        pending = [task for name in self._max_inputs for task in self._make_tasks(name, range(len(inputs)))]
        while pending or running:
            running |= {self._submit(task, inputs): task for task in pending}
            pending = []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                new_outcomes, new_tasks = self._collect(future, running.pop(future))
                outcomes |= new_outcomes
                pending += new_tasks
        return {name: [outcomes[name, row] for row in range(len(inputs))] for name in self._max_inputs}

    def _make_tasks(self, name: str, rows: Sequence[int]) -> list[_Task]:
        """Split `rows` into one task per worker, or into more tasks if these would be too large."""
        size = math.ceil(len(rows) / self._num_workers)
        size = size if self._max_inputs[name] > 1 else min(size, _MAX_TASK_SIZE)
        return [_Task(name, rows[start : start + size]) for start in range(0, len(rows), size or 1)]

    def _submit(self, task: _Task, inputs: Sequence[RewardInput]) -> Future[Any]:
        arguments = (task.function, [inputs[row] for row in task.rows], self._timeout)
        kill_after = self._timeout + _TIME_SLICE + _AWAIT_GRACE + _KILL_GRACE
        return self._pool.schedule(_run_task, arguments, timeout=kill_after)

    def _collect(self, future: Future[Any], task: _Task) -> tuple[_Outcomes, list[_Task]]:
        """The outcomes of a finished task, and new tasks for its remaining rows."""
        try:
            outcomes = future.result()
        except ProcessExpired as error:
            return self._fail_call(task, *self._read_status(error))
        except TimeoutError:
            return self._fail_call(task, -1, f"took longer than {self._timeout:g} seconds\n", "timed out")
        except RuntimeError as error:
            what = "the worker processes of the reward functions died"
            do = "see the messages above; start the run again to resume it"
            raise RewardError(what, got=str(error), do=do) from error
        finished = dict(zip(((task.function, row) for row in task.rows), outcomes, strict=False))
        rest = task.rows[len(outcomes) :]
        return finished, [_Task(task.function, half) for half in (rest[::2], rest[1::2]) if half]

    def _read_status(self, error: ProcessExpired) -> tuple[int, str, FailureKind]:
        """The status of a worker that died: the index of the input in its task, a message, and the kind of failure."""
        path = Path(self._status_directory.name, str(error.pid))
        index, _, stack = path.read_text(encoding="utf-8").partition("\n")
        path.unlink()
        _kill_group(error.pid)
        if not stack:
            return int(index), f"the worker process died with exit code {error.exitcode}\n", "died"
        message = f"took longer than {self._timeout:g} seconds; most recent call first:\n"
        return int(index), message + _user_frames(stack), "timed out"

    def _fail_call(self, task: _Task, index: int, message: str, kind: FailureKind) -> tuple[_Outcomes, list[_Task]]:
        """Record a failure for the call during which a worker died, and make tasks for the other rows.

        If that call is unknown (`index` is -1), retry each row in its own task.
        """
        if index < 0 and len(task.rows) > 1:
            return {}, [_Task(task.function, [row]) for row in task.rows]
        failed = task.rows[max(index, 0) :][: self._max_inputs[task.function]]
        rest = [row for row in task.rows if row not in failed]
        failure = Failure(task.function, kind, shorten(message))
        new_tasks = self._make_tasks(task.function, rest) if rest else []
        return {(task.function, row): failure for row in failed}, new_tasks


def _kill_group(worker: int) -> None:
    """Kill the processes that the dead process `worker` has started."""
    with suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _user_frames(stack: str) -> str:
    """The frames of the reward function in a stack dump, without the frames of the worker."""
    hidden = (*_HIDDEN_FILES, *INTERNAL_FILES)
    lines = stack.splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("  File") and not any(name in line for name in hidden))


# --- in a worker process -----------------------------------------------------------------------------------------

_REWARDS: dict[str, LoadedReward | Failure] = {}


class _StatusFile:
    """The file in which a worker records the index of its current input and, if it is terminated, its stack."""

    def __init__(self, directory: str):
        self._file = Path(directory, str(os.getpid())).open("w", encoding="utf-8")  # noqa: SIM115 -- open until exit
        self._watchdog_start = -math.inf
        self.write_index(-1)
        os.lseek(self._file.fileno(), 0, os.SEEK_END)

    def write_index(self, index: int) -> None:
        os.pwrite(self._file.fileno(), f"{index:8d}\n".encode(), 0)

    def start_watchdog(self, seconds: float) -> None:
        """Terminate the process after `seconds`, unless this is called again or the watchdog is stopped.

        Restarting a watchdog that is younger than 1 % of `seconds` has no effect, to save time in fast functions.
        """
        now = time.monotonic()
        if now - self._watchdog_start > seconds / 100:
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)
            self._watchdog_start = now

    def stop_watchdog(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._watchdog_start = -math.inf


_STATUS_FILES: list[_StatusFile] = []


def _initialize_worker(names: Sequence[str], status_directory: str) -> None:
    """Load the functions, outside of any timeout. The worker leads its own process group, see `_kill_group`."""
    os.setsid()
    _ignore_stop_signals(Path(status_directory, _CLOSING))
    _STATUS_FILES.append(_StatusFile(status_directory))
    for name in names:
        try:
            _REWARDS[name] = load_reward(name)
        except Exception:  # noqa: BLE001 -- reported for each row, like an exception of the function
            _REWARDS[name] = Failure(name, "raised", shorten(traceback.format_exc()))


def _ignore_stop_signals(closing: Path) -> None:
    """Ignore SIGTERM and SIGUSR1, which schedulers send to all processes of a job, until the file `closing` exists.

    The run decides when it stops. Until then it needs its workers: without them rewards would be missing.
    """
    end: Any = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *arguments: end(*arguments) if closing.exists() else None)
    signal.signal(signal.SIGUSR1, lambda *_: None)


def _run_task(name: str, inputs: Sequence[RewardInput], timeout: float) -> list[Outcome]:
    reward, status_file = _REWARDS[name], _STATUS_FILES[0]
    if isinstance(reward, Failure):
        return [reward] * len(inputs)

    def before_call(index: int) -> None:
        status_file.write_index(index)
        if index < 0:  # awaitables have their own timeout
            status_file.stop_watchdog()
        status_file.start_watchdog(timeout if index >= 0 else timeout + _AWAIT_GRACE)

    try:
        stop_at = time.monotonic() + _TIME_SLICE
        return call_reward(reward, inputs, timeout=timeout, before_call=before_call, stop_at=stop_at)
    finally:
        status_file.stop_watchdog()


# --- starting a worker process -----------------------------------------------------------------------------------


class _WorkerProcess(SpawnProcess):
    """A spawned process that does not import the main script.

    Importing it would run scripts without an ``if __name__ == "__main__"`` guard again, and would load modules that a
    worker does not need.
    """

    def start(self) -> None:
        with _hide_main_module():
            super().start()


@contextmanager
def _hide_main_module() -> Iterator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _WorkerContext(SpawnContext):
    Process = _WorkerProcess
