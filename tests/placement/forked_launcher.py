"""``python -m tests.placement.forked_launcher ARGUMENTS``: ``purerl ARGUMENTS``, whose ranks are forked.

It runs in a forked process, which has a server that forks others: see `tests.forks`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

from purerl.system.workers import processes
from purerl_cli.main import main
from tests.ranks import RANKS

__all__ = ["run_forked", "start_forked"]


def start_forked(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`Popen`, for a command of purerl: it is forked, and so are its ranks."""
    return RANKS.Popen(_with_forked_ranks(command), **options)


def run_forked(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, for a command of purerl: it is forked, and so are its ranks."""
    return RANKS.run(_with_forked_ranks(command), **options)


def _with_forked_ranks(command: Sequence[str]) -> list[str]:
    python, *module = command[:3]
    assert module == ["-m", "purerl_cli"]
    return [python, "-m", __name__, *command[3:]]


if __name__ == "__main__":
    subprocess_handler.Popen = processes.subprocess.Popen
    main()
