"""Modules that tests run on several ranks: processes with gloo, which are forked, or started by torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

from purerl.ranks import current_ranks
from tests.forks import PROGRAMS, Forks

__all__ = [
    "MAX_ERROR",
    "RANKS",
    "TIMEOUT",
    "Cases",
    "check_cases",
    "count_cases",
    "forked_ranks",
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

RANKS = Forks(
    *PROGRAMS.modules, "purerl.backends.hf.trainer", "purerl.testing.trainer", "tests.backends.tiny",
    "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
    "transformers.models.auto.modeling_auto",
    base=PROGRAMS,
)  # fmt: skip
"""Programs whose ranks train models of transformers."""

_SECONDS_TO_END = 30.0  # in which ranks must end after another one has failed


def torchrun(
    *arguments: str,
    ranks: int = 2,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
    status: int = 0,
) -> subprocess.CompletedProcess[str]:
    """The output of torchrun with `arguments` (`-m`, a module, its arguments); it must exit with `status`."""
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


def forked_ranks(
    *arguments: str,
    ranks: int = 2,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
    status: int = 0,
) -> subprocess.CompletedProcess[str]:
    """As `torchrun`, except that this process does what its launcher does, and the ranks are forked."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        processes = [
            RANKS.Popen(
                [sys.executable, "-u", *arguments],
                env={**os.environ, **_variables(rank, ranks, store.port), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )
            for rank in range(ranks)
        ]
        code = int(any(_wait_for(processes, timeout)))
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
    assert code == status, texts[1][-MAX_ERROR:]
    return subprocess.CompletedProcess([*arguments], code, *texts)


def _variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for `rank`, which meets the others at the store of the launcher."""
    values: dict[str, Any] = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank)
    values |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), ranks)
    values |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default"}
    values |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    values |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": f"tests-{port}"}
    return {name: str(value) for name, value in values.items()}


def _wait_for(processes: Sequence[subprocess.Popen[Any]], timeout: float) -> list[int]:
    """The exit statuses of `processes`. After one that has failed the others are ended, as torchrun does."""
    end = time.monotonic() + timeout
    try:
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                for process in processes:
                    process.terminate()
                end = min(end, time.monotonic() + _SECONDS_TO_END)
            assert time.monotonic() < end, f"{processes} have not ended after {timeout:g} seconds"
            time.sleep(0.02)
        return [process.returncode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def results_of_ranks(
    module: str,
    directory: Path,
    *arguments: str,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    create: type[subprocess.Popen[Any]] = PROGRAMS.Popen,
) -> list[dict[str, Any]]:
    """The values that `python -m module directory *arguments rank` has saved as ``directory/rank.pt``, by rank."""
    with tempfile.TemporaryFile("w+") as errors:
        processes = [
            create(
                [sys.executable, "-m", module, str(directory), *arguments, str(rank)],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            for rank in range(ranks)
        ]
        statuses = _wait_for(processes, 600.0)
        errors.seek(0)
        assert statuses == [0] * ranks, errors.read()[-MAX_ERROR:]
    return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def check_cases(*arguments: str, **options: Any) -> None:
    """Run a module that calls `run_cases`; the arguments are those of `forked_ranks`."""
    assert re.fullmatch(r"\d+ cases are equal", forked_ranks(*arguments, **options).stdout.splitlines()[-1])


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
    from purerl.testing.trainer.resources import shared_directory  # takes a second, and other ranks do not need it

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
