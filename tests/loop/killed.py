"""A run in a process of its own, which dies at a chosen moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
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
    """Train in another process; its exit code.

    It kills itself at the `at_event`-th event (a phase of a step begins or ends, a file of the run is about to be
    touched), or is killed `after` seconds.
    """
    process = _processes.Process(target=_train, args=(config, directory, at_event))
    process.start()
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode


def count_events(config: RunConfig, directory: Path) -> int:
    """Train in another process to the end; how many events there were."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_count, args=(config, directory, sender))
    process.start()
    process.join()
    assert process.exitcode == 0
    return receiver.recv()


def _train(config: RunConfig, directory: Path, deadly: int | None) -> None:
    from purerl.loop.train import train

    if deadly is not None:
        _listen(directory, lambda count: count == deadly and os.kill(os.getpid(), signal.SIGKILL))
    _announce_phases(directory)
    train(config, directory=directory)


def _announce_phases(directory: Path) -> None:
    """Make the beginning and the end of every phase an event."""
    from purerl.loop.run import Clock

    original = Clock.__call__

    @contextmanager
    def phase(self: Clock, name: str) -> Iterator[None]:
        sys.audit("purerl.phase", str(directory), name)
        with original(self, name):
            yield
        sys.audit("purerl.phase", str(directory), name)

    Clock.__call__ = phase


def _count(config: RunConfig, directory: Path, sender: Any) -> None:
    seen = [0]
    _listen(directory, lambda count: seen.__setitem__(0, count))
    _train(config, directory, None)
    sender.send(seen[0])


def _listen(directory: Path, heard: Any) -> None:
    """Call `heard` at each event, with the number of events so far."""
    prefix, count = str(directory), [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and arguments and str(arguments[0]).startswith(prefix):
            count[0] += 1
            heard(count[0])

    sys.addaudithook(hook)
