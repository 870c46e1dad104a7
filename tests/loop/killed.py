"""Training in another process, which is killed at a chosen event or time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["purerl.loop.train", "purerl.recipes.addition", "transformers", "pyarrow.parquet"])


_OF_STEP = "phase of a step"
PHASES = ("start", "step", "checkpoint without manifest", "export")


class PhaseEvent(NamedTuple):
    """Event `number`, from 1, of those in one of `PHASES`."""

    phase: str
    number: int


def run(
    config: RunConfig, directory: Path, *, at_event: int | PhaseEvent | None = None, after: float | None = None
) -> int:
    """Train in another process; return its exit code.

    The process kills itself at the event `at_event`, or is killed after `after` seconds. An event is the start or the
    end of a phase of a step, or an operation on a file of the run.
    """
    process = PROCESSES.Process(target=_train, args=(config, directory, at_event))
    process.start()
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def count_events(config: RunConfig, directory: Path) -> Counter[str]:
    """Train in another process until the run is finished; return the number of events in each of `PHASES`."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_count, args=(config, directory, sender))
    process.start()
    process.join()
    assert process.exitcode == 0
    return receiver.recv()


def _train(config: RunConfig, directory: Path, kill_at: int | PhaseEvent | None) -> None:
    from purerl.loop.train import train

    if isinstance(kill_at, PhaseEvent):
        kill_in_phase(directory, kill_at)
    elif kill_at is not None:
        on_event(directory, lambda count, _: count == kill_at and os.kill(os.getpid(), signal.SIGKILL))
    audit_phases(directory)
    train(config, directory=directory)


def audit_phases(directory: Path) -> None:
    """Raise an audit event at the start and at the end of every phase."""
    from purerl.loop.state import Clock

    original = Clock.__call__

    @contextmanager
    def audited(self: Clock, phase: str) -> Iterator[None]:
        sys.audit("purerl.phase", str(directory / _OF_STEP), phase)
        with original(self, phase):
            yield
        sys.audit("purerl.phase", str(directory / _OF_STEP), phase)

    Clock.__call__ = audited


def _count(config: RunConfig, directory: Path, sender: Any) -> None:
    counts = count_by_phase(directory, lambda phase, number: None)
    _train(config, directory, None)
    sender.send(counts)


def kill_in_phase(directory: Path, event: PhaseEvent) -> None:
    """Kill this process at `event`."""

    def callback(phase: str, number: int) -> None:
        if (phase, number) == event:
            os.kill(os.getpid(), signal.SIGKILL)

    count_by_phase(directory, callback)


def count_by_phase(directory: Path, callback: Callable[[str, int], None]) -> Counter[str]:
    """Call `callback` at each event in `directory`, with its phase and its number in it; return the counts so far."""
    counts = Counter[str]()

    def count(_: int, path: str) -> None:
        phase = _phase_of(directory, path, has_steps=counts["step"] > 0)
        counts[phase] += 1
        callback(phase, counts[phase])

    on_event(directory, count)
    return counts


def _phase_of(directory: Path, path: str, *, has_steps: bool) -> str:
    """The phase of an event at `path`. That of a phase of a step is at `_OF_STEP`, which is no file."""
    parts = Path(path).parts[len(directory.parts) :]
    if parts[:1] == ("final",):
        return "export"
    if (
        len(parts) > 2
        and parts[0] == "checkpoints"
        and not (directory / parts[0] / parts[1] / "manifest.json").exists()
    ):
        return "checkpoint without manifest"
    return "step" if has_steps or parts == (_OF_STEP,) else "start"


def on_event(directory: Path, callback: Callable[[int, str], object]) -> None:
    """Call `callback` at each event in `directory`, with the number of events so far, and the path."""
    prefix, count = str(directory), [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and arguments and str(arguments[0]).startswith(prefix):
            count[0] += 1
            callback(count[0], str(arguments[0]))

    sys.addaudithook(hook)
