"""Starting the ranks of a run on this host, with the process launcher of torch, and ending them together.

    purerl train r.toml --set placement.ranks=2
      ├── rank 0: the same command, with the variables that torchrun sets
      └── rank 1

The ranks meet in a folder that only their user can enter, and open no port for it. This process has made it, and
outlives each of them. It passes signals on: the ranks stop together. Nothing is restarted. The same command resumes
the run.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from purerl.placement.meeting import prepare_folder
from purerl.placement.watchdog import is_stopped
from purerl.placement.world import FOLDER_VARIABLE
from purerl.system.private_files import private_folder

__all__ = ["launch"]

_PERIOD = 0.1  # seconds
_MAX_TO_END = 75.0  # seconds in which the other ranks end by themselves after one has failed
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def launch(arguments: Sequence[str], ranks: int) -> int:
    """Run this Python with `arguments` as `ranks` processes, until all have ended; return the exit status.

    If one fails, the others end too. The status is that of rank 0 if it has ended by itself, otherwise that of the
    first process that failed. A rank that was killed is named on stderr.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    local = range(ranks)
    with private_folder("purerl-ranks-") as folder, _restored_handlers() as before:
        prepare_folder(folder)
        context = start_processes(
            name="purerl",
            entrypoint=sys.executable,
            args=dict.fromkeys(local, tuple(arguments)),
            envs={rank: _environment(rank, ranks, folder) for rank in local},
            logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        )
        try:
            processes = [*context.pids().values()]
            _pass_on(processes, [number for number in _SIGNALS if before[number] is not signal.SIG_IGN])
            _wait_for(processes)
            while (result := context.wait(0)) is None:
                time.sleep(_PERIOD)
        finally:
            context.close()
    statuses = {rank: failure.exitcode for rank, failure in result.failures.items()}
    for rank, status in statuses.items():
        if status < 0 and -status != signal.SIGTERM:
            sys.stderr.write(f"rank {rank} was ended by {signal.Signals(-status).name}\n")
    return _exit_status(statuses)


def _exit_status(statuses: Mapping[int, int]) -> int:
    """The exit status of a run whose ranks have these statuses; only those that have failed are in it.

    >>> _exit_status({}), _exit_status({1: -9, 0: 1}), _exit_status({0: -9}), _exit_status({0: 75, 1: 1})
    (0, 1, 1, 75)
    """
    own = [status for _, status in sorted(statuses.items()) if status > 0]
    return own[0] if own else int(bool(statuses))


def _environment(rank: int, ranks: int, folder: Path) -> dict[str, str]:
    """The variables that torchrun would set for `rank`, with the `folder` in place of an address."""
    values: dict[str, Any] = dict(RANK=rank, LOCAL_RANK=rank, GROUP_RANK=0, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
    values |= {"TORCHELASTIC_RUN_ID": f"purerl-{os.getpid()}", FOLDER_VARIABLE: folder}
    return {name: str(value) for name, value in values.items()}


@contextmanager
def _restored_handlers() -> Iterator[dict[signal.Signals, Any]]:
    """The handlers of signals before the block, after which they are restored: torch sets others."""
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGQUIT)}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(processes: Sequence[int], signals: Sequence[int]) -> None:
    """Pass `signals` on to `processes`, which do not get those of the terminal: they have sessions of their own."""

    def handle(number: int, frame: object) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    for number in signals:
        signal.signal(number, handle)


def _wait_for(processes: Sequence[int]) -> None:
    """Wait until all `processes` have ended; after a failure only for some time, and kill those stopped then."""
    deadline = math.inf
    while time.monotonic() < deadline:
        ends = [os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) for process in processes]
        if all(ends):
            return
        if deadline == math.inf and any(end is not None and end.si_status for end in ends):
            deadline = time.monotonic() + _MAX_TO_END
        if deadline < math.inf:
            for process in (process for process, end in zip(processes, ends, strict=True) if end is None):
                if is_stopped(process):
                    os.kill(process, signal.SIGKILL)
        time.sleep(_PERIOD)
