"""Training in another process, which is killed at a chosen event or time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from purerl.config.schema import RunConfig

_EVENTS = {
    "purerl.phase",
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "shutil.rmtree",
    "os.scandir",
    "os.listdir",
}

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["purerl.loop.train", "purerl.recipes.addition", "transformers", "pyarrow.parquet"])


def run(config: RunConfig, directory: Path, *, at_event: int | None = None, after: float | None = None) -> int:
    """Train in another process; return its exit code.

    The process kills itself at the `at_event`-th event, or is killed after `after` seconds. An event is the start or
    the end of a phase of a step, or an operation on a file of the run.
    """
    process = _processes.Process(target=_train, args=(config, directory, at_event))
    process.start()
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def count_events(config: RunConfig, directory: Path) -> int:
    """Train in another process until the run is finished; return the number of events."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_count, args=(config, directory, sender))
    process.start()
    process.join()
    assert process.exitcode == 0
    return receiver.recv()


def _train(config: RunConfig, directory: Path, kill_at: int | None) -> None:
    from purerl.loop.train import train

    if kill_at is not None:
        on_event(directory, lambda count, _: count == kill_at and os.kill(os.getpid(), signal.SIGKILL))
    audit_phases(directory)
    train(config, directory=directory)


def audit_phases(directory: Path) -> None:
    """Raise an audit event at the start and at the end of every phase."""
    from purerl.loop.state import Clock

    original = Clock.__call__

    @contextmanager
    def audited(self: Clock, phase: str) -> Iterator[None]:
        sys.audit("purerl.phase", str(directory), phase)
        with original(self, phase):
            yield
        sys.audit("purerl.phase", str(directory), phase)

    Clock.__call__ = audited


def _count(config: RunConfig, directory: Path, sender: Any) -> None:
    total = [0]
    on_event(directory, lambda count, _: total.__setitem__(0, count))
    _train(config, directory, None)
    sender.send(total[0])


def on_event(directory: Path, callback: Callable[[int, str], object]) -> None:
    """Call `callback` at each event in `directory`, with the number of events so far, and the path."""
    prefix, count = str(directory), [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and arguments and str(arguments[0]).startswith(prefix):
            count[0] += 1
            callback(count[0], str(arguments[0]))

    sys.addaudithook(hook)
