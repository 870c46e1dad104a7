"""Reward functions in processes of their own, where one that hangs or crashes does no harm.

Cases go to a worker many at a time. It judges them one after the other until a slice of time has passed and hands back
the rest, so rewards that take microseconds cost little to send, and those that take seconds are spread evenly.

A watchdog in each worker ends the process when one call has outlived its deadline, whatever that call is doing, and
whether or not the process that started the worker still lives. It leaves behind where the call was. Processes that the
call has started end with it. The row that was being judged has failed; rows that were on their way are judged again by
another worker.
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
from purerl.rewards.outcomes import OWN, Failure, Kind, Outcome, call_reward, shorten

__all__ = ["Workers"]

_MOST_WORKERS = 8
_CHUNK = 256
_SLICE = 0.1  # seconds that a worker goes on to the next call
_GRACE = 1.0  # seconds for what awaits to end by itself
_LATE = 2.0  # seconds until a worker whose watchdog failed is killed from here

_OWN = ("/pebble/", "/multiprocessing/", "/asyncio/", "/concurrent/", "/threading.py", "<string>", *OWN)


class _Task(NamedTuple):
    """Rows, by their place in the list of cases, that one worker judges by one function."""

    function: str
    rows: Sequence[int]


_Settled = tuple[dict[tuple[str, int], Outcome], list[_Task]]


class Workers:
    """Worker processes that know the functions of `scorers`, each by its name.

    `count` of them, one for each core if None; `deadline` in seconds. To be started, and to be closed at the end.
    """

    def __init__(self, scorers: Sequence[LoadedReward], *, count: int | None, deadline: float):
        self._most = {scorer.name: scorer.convention.most for scorer in scorers}
        self._count = count or min(os.cpu_count() or 1, _MOST_WORKERS)
        self._deadline = deadline
        self._pool: ProcessPool | None = None
        self._notes = tempfile.TemporaryDirectory(prefix="purerl-rewards-")

    def start(self) -> None:
        """Start the processes; they get ready while others work."""
        begin = (tuple(self._most), self._notes.name)
        self._pool = ProcessPool(self._count, initializer=_begin, initargs=begin, context=_Light())
        _ = self._pool.active  # asking starts it

    def close(self) -> None:
        """End the processes, and what they are doing."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
        for note in Path(self._notes.name).iterdir():
            _end_group(int(note.name))
        self._notes.cleanup()

    def score(self, cases: Sequence[RewardInput]) -> dict[str, list[Outcome]]:
        """What each function says of each of `cases`, in their order. Raises RewardError where no worker can live."""
        found: dict[tuple[str, int], Outcome] = {}
        running: dict[Future[Any], _Task] = {}
        todo = [task for name in self._most for task in self._shares(name, range(len(cases)))]
        while todo or running:
            running |= {self._start(task, cases): task for task in todo}
            todo = []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done, again = self._settled(future, running.pop(future))
                found |= done
                todo += again
        return {name: [found[name, row] for row in range(len(cases))] for name in self._most}

    def _shares(self, name: str, rows: Sequence[int]) -> list[_Task]:
        """As many tasks as there are workers, or more where they would be long."""
        size = math.ceil(len(rows) / self._count)
        size = size if self._most[name] > 1 else min(size, _CHUNK)
        return [_Task(name, rows[first : first + size]) for first in range(0, len(rows), size or 1)]

    def _start(self, task: _Task, cases: Sequence[RewardInput]) -> Future[Any]:
        arguments = (task.function, [cases[row] for row in task.rows], self._deadline)
        return self._pool.schedule(_judge, arguments, timeout=self._deadline + _SLICE + _GRACE + _LATE)

    def _settled(self, future: Future[Any], task: _Task) -> _Settled:
        """What a task has come to: outcomes of some of its rows, and tasks for the others."""
        try:
            found = future.result()
        except ProcessExpired as error:
            return self._expired(task, *self._note(error))
        except TimeoutError:
            return self._expired(task, -1, f"took longer than {self._deadline:g} seconds\n", "timed out")
        except RuntimeError as error:
            do = "see the messages above; the run resumes"
            raise RewardError("the processes of reward functions have died", got=str(error), do=do) from error
        done = dict(zip(((task.function, row) for row in task.rows), found, strict=False))
        rest = task.rows[len(found) :]
        return done, [_Task(task.function, half) for half in (rest[::2], rest[1::2]) if half]

    def _note(self, error: ProcessExpired) -> tuple[int, str, Kind]:
        """What a worker that died was doing: the place of the case in its task, where it was, and what happened."""
        path = Path(self._notes.name, str(error.pid))
        place, _, stack = path.read_text(encoding="utf-8").partition("\n")
        path.unlink()
        _end_group(error.pid)
        if not stack:
            return int(place), f"the process that it ran in died with exit code {error.exitcode}\n", "died"
        took = f"took longer than {self._deadline:g} seconds; most recent call first:\n"
        return int(place), took + _frames(stack), "timed out"

    def _expired(self, task: _Task, place: int, text: str, kind: Kind) -> _Settled:
        """The call that a worker died of has failed. Where it is not known which, each row is to be tried alone."""
        if place < 0 and len(task.rows) > 1:
            return {}, [_Task(task.function, [row]) for row in task.rows]
        failed = task.rows[max(place, 0) :][: self._most[task.function]]
        others = [row for row in task.rows if row not in failed]
        failure = Failure(task.function, kind, shorten(text))
        again = self._shares(task.function, others) if others else []
        return {(task.function, row): failure for row in failed}, again


def _end_group(worker: int) -> None:
    """End the processes that `worker`, which is gone, has started."""
    with suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _frames(stack: str) -> str:
    """The frames of what a worker was told to do, without those of the worker itself."""
    lines = stack.splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("  File") and not any(own in line for own in _OWN))


# --- in a worker -------------------------------------------------------------------------------------------------

_SCORERS: dict[str, LoadedReward | Failure] = {}


class _Note:
    """The file that says what a worker is doing: the place of the case that it judges, and, when it dies, where."""

    def __init__(self, folder: str):
        self._file = Path(folder, str(os.getpid())).open("w", encoding="utf-8")  # noqa: SIM115 -- for as long as the process lives
        self._armed = -math.inf
        self.place(-1)
        os.lseek(self._file.fileno(), 0, os.SEEK_END)

    def place(self, place: int) -> None:
        os.pwrite(self._file.fileno(), f"{place:8d}\n".encode(), 0)

    def watch(self, seconds: float) -> None:
        """The process has so many seconds to live, from now on or from a hundredth of them ago."""
        now = time.monotonic()
        if now - self._armed > seconds / 100:
            faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)
            self._armed = now

    def rest(self) -> None:
        """The process may live."""
        faulthandler.cancel_dump_traceback_later()
        self._armed = -math.inf


_NOTES: list[_Note] = []


def _begin(names: Sequence[str], folder: str) -> None:
    """Load the functions: before the clock of any deadline. What they start is of this process's group."""
    os.setsid()
    _NOTES.append(_Note(folder))
    for name in names:
        try:
            _SCORERS[name] = load_reward(name)
        except Exception:  # noqa: BLE001 -- told for each row, as what the function raises
            _SCORERS[name] = Failure(name, "raised", shorten(traceback.format_exc()))


def _judge(name: str, cases: Sequence[RewardInput], deadline: float) -> list[Outcome]:
    scorer, note = _SCORERS[name], _NOTES[0]
    if isinstance(scorer, Failure):
        return [scorer] * len(cases)

    def before(place: int) -> None:
        note.place(place)
        if place < 0:  # what is awaited has a deadline of its own
            note.rest()
        note.watch(deadline if place >= 0 else deadline + _GRACE)

    try:
        return call_reward(scorer, cases, deadline=deadline, before=before, until=time.monotonic() + _SLICE)
    finally:
        note.rest()


# --- starting one ------------------------------------------------------------------------------------------------


class _LightProcess(SpawnProcess):
    """A process that does not import the script that has started the run.

    Scripts that are not guarded by ``if __name__ == "__main__"`` would run again, and those that are would load what a
    worker has no use for.
    """

    def start(self) -> None:
        with _no_script():
            super().start()


@contextmanager
def _no_script() -> Iterator[None]:
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


class _Light(SpawnContext):
    Process = _LightProcess
