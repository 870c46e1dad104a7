"""Modules that tests run on several ranks: real processes with gloo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from purerl.ranks import current_ranks
from purerl.testing.trainer.resources import shared_directory

__all__ = [
    "MAX_ERROR",
    "TIMEOUT",
    "Cases",
    "check_cases",
    "count_cases",
    "leave_process_group",
    "print_on_first",
    "results_of_ranks",
    "run_cases",
    "torchrun",
]

Cases = Callable[[Path], Iterable[tuple[str, Callable[[], object]]]]
"""Names of cases, and functions that raise an error if a case fails. All ranks see the directory."""

TIMEOUT = timedelta(seconds=120)
"""Of collective calls."""

MAX_ERROR = 4000
"""Characters of what ranks have written that a failed test shows."""


def torchrun(
    *arguments: str,
    ranks: int = 2,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
    status: int = 0,
) -> subprocess.CompletedProcess[str]:
    """What torchrun with `arguments` (`-m`, a module, its arguments) has printed; it must end with `status`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, done.stderr[-MAX_ERROR:]
    return done


def results_of_ranks(
    module: str, directory: Path, *arguments: str, ranks: int = 2, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What `python -m module directory *arguments rank` has saved as ``directory/rank.pt``, by rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(directory), *arguments, str(rank)],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(errors)[-MAX_ERROR:]
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def check_cases(*arguments: str, **options: Any) -> None:
    """Run a module that calls `run_cases`; the arguments are those of `torchrun`."""
    assert re.fullmatch(r"\d+ cases are equal", torchrun(*arguments, **options).stdout.splitlines()[-1])


def run_cases(cases: Cases) -> None:
    """Run `cases`, in a directory that all ranks see, on the ranks that torchrun has started.

    A case raises an error if it fails. Rank 0 prints the time of each, and how many there are.
    """
    torch.set_num_threads(1)
    dist.init_process_group(timeout=TIMEOUT)
    count = count_cases(cases)
    print_on_first(f"{count} cases are equal")
    leave_process_group()


def leave_process_group() -> None:
    """End the process group when no rank needs the store any more, which rank 0 may have."""
    dist.barrier()
    dist.destroy_process_group()


def count_cases(cases: Cases) -> int:
    """Run `cases` as `run_cases` does, in a process group that exists; return how many there are."""
    count = 0
    with shared_directory() as directory:
        for name, run in cases(directory):
            start = time.monotonic()
            run()
            count += 1
            print_on_first(f"{time.monotonic() - start:5.1f} s  {name}")
    return count


def print_on_first(line: str) -> None:
    """Print `line` at once, on rank 0."""
    if current_ranks().is_first:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
