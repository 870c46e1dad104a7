"""Runs on several ranks: processes that are forked, so that torch and transformers are imported once."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.loop.callbacks import NO_CALLBACKS, Callbacks
from purerl.loop.train import train
from purerl.ranks import current_ranks
from tests.loop.killed import audit_phases, on_event
from tests.loop.runs import records, without_times
from tests.ranks import RANKS

__all__ = ["Action", "Ended", "Kill", "assert_close", "run_world"]

DEADLINE = 240.0  # seconds: for a hang; nothing else takes so long on a busy machine


class Action(NamedTuple):
    """The action of a rank before a step: a name of `ACTIONS`."""

    rank: int
    step: int
    name: str


class Kill(NamedTuple):
    """A rank kills itself at an event: the one with this number, or one at a path that ends so."""

    rank: int
    at: int | str


class Ended(NamedTuple):
    """The end of a rank: its exit status (negative: the signal), what it has printed, and its number of events."""

    status: int | None
    console: str
    events: int


def _fail() -> None:
    raise ZeroDivisionError("a bug in a callback")


ACTIONS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": _fail,
    "another call": lambda: current_ranks().gather(None, "a call of the test"),
    "small files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY)),
    "hang": lambda: time.sleep(DEADLINE),
}


def run_world(
    config: RunConfig,
    directory: Path,
    *,
    ranks: int = 2,
    action: Action | Kill | None = None,
    others: RunConfig | None = None,
    callbacks: Callbacks = NO_CALLBACKS,
) -> list[Ended]:
    """Train in `ranks` processes, which srun has started, as far as they can tell.

    `others` is the configuration of all ranks but 0, if it is not `config`. Every rank has `callbacks`, but for their
    `should_stop`.
    """
    for name in RANKS.modules:  # or each rank imports what it needs of them
        import_module(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    directory.parent.mkdir(parents=True, exist_ok=True)
    consoles = [directory.with_name(f"{directory.name}-console-{rank}") for rank in range(ranks)]
    fork = multiprocessing.get_context("fork")
    configs = [config, *[others or config] * (ranks - 1)]
    of_all = (action, callbacks)
    processes = [
        fork.Process(target=_rank, args=(configs[rank], directory, rank, ranks, port, consoles[rank], *of_all))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + DEADLINE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    statuses = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    events = [_events_file(path) for path in consoles]
    counts = [int(path.read_text() or 0) if path.exists() else 0 for path in events]
    return [Ended(*each) for each in zip(statuses, (path.read_text() for path in consoles), counts, strict=True)]


def _events_file(console: Path) -> Path:
    return console.with_suffix(".events")


def assert_close(directory: Path, expected: Path) -> None:
    """The runs in both directories have the same metrics, except for times and rounding."""
    runs = (without_times(records(path)) for path in (directory, expected))
    for got, needed in zip(*runs, strict=True):
        pairs = {name: (got.get(name), needed.get(name)) for name in {*got, *needed}}
        assert {n: pair for n, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=1e-9, abs=1e-9)} == {}


def slurm(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables of a process that srun has started."""
    values: dict[str, Any] = {
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": ranks,
        "SLURM_STEP_NUM_TASKS": ranks,
        "SLURM_LOCALID": rank,
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": ranks,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}


def _rank(
    config: RunConfig,
    directory: Path,
    rank: int,
    ranks: int,
    port: int,
    console: Path,
    action: Action | Kill | None,
    callbacks: Callbacks,
) -> None:
    os.environ.update(slurm(rank, ranks, port))
    with console.open("w") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    steps = iter(range(1, 1000))

    def before_step() -> bool:
        step = next(steps)
        if isinstance(action, Action) and (rank, step) == (action.rank, action.step):
            ACTIONS[action.name]()
        return False

    count = [0]
    audit_phases(directory)
    on_event(directory, lambda number, path: _at_event(number, path, rank, action, count))
    status = 0
    try:
        train(config, directory=directory, callbacks=evolve(callbacks, should_stop=before_step))
    except BaseException:  # noqa: BLE001 - a process that was forked must not return
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    _events_file(console).write_text(str(count[0]))
    os._exit(status)


def _at_event(number: int, path: str, rank: int, action: Action | Kill | None, count: list[int]) -> None:
    count[0] = number
    if isinstance(action, Kill) and rank == action.rank:
        is_due = path.endswith(action.at) if isinstance(action.at, str) else number == action.at
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)
