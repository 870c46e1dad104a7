"""The processes that have worked on a run: what is needed to repeat it, in processes.jsonl of the run directory.

    {"step": 0, "started": "2026-11-30T11:00:00+00:00", "cpu_seconds": 4.1, "ranks": 1, "commit": "4f2a...",
     "versions": {"python": "3.11.7", "purerl": "0.1.0", "torch": "2.13.0", ...},
     "machine": {"system": "Linux x86_64", "processor": "AMD EPYC 9B14", "cores": 2}}

Each process, on the first rank, appends a line before its first step, so a run that was resumed has several. ``step``
is the number of steps that had been done. ``cpu_seconds`` is what the process had used by then: to import packages, to
open data and models, and for the initial run. ``commit`` ends in ``-dirty`` if files of the clone had changes, and is
null if it is not known.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from purerl.store.lines import read_lines
from purerl.system.provenance import commit, machine, versions
from purerl.system.strict_json import to_json

__all__ = ["log_process", "read_processes"]

_NAME = "processes.jsonl"


def log_process(run: Path, step: int, ranks: int) -> None:
    """Append this process to those of the `run`, of which `step` steps have been done, with this number of `ranks`."""
    process = {
        "step": step,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu_seconds": time.process_time(),
        "ranks": ranks,
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
    }
    with (run / _NAME).open("a", encoding="utf-8") as file:
        file.write(to_json(process) + "\n")


def read_processes(run: Path) -> list[dict[str, Any]]:
    """The processes that have worked on the `run`, in their order; none if it has not started.

    Raises: DataError if a line is broken.
    """
    return read_lines(run / _NAME)
