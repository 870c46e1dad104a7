"""A run in a process of its own whose trainer hangs at its third step, and the stacks that it is asked for."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from attrs import evolve

from purerl.config.structure import dumps
from purerl.errors import InputError
from purerl.placement.settings import Placement
from purerl.placement.stacks import Stacks, request_stacks
from tests.loop import failing_trainer
from tests.loop.small import fake

DEADLINE = 240.0  # seconds
HANGS = re.compile(r'failing_trainer.py", line \d+ in <lambda>')


def stacks_of_hanging_run(directory: Path, placement: Placement, rank: int) -> list[Stacks]:
    """The stacks of a run with `placement` once the trainer of `rank` hangs."""
    trainer = failing_trainer.Config(vocab_size=14, action="hang", rank=rank)
    file = directory / "run.toml"
    file.write_text(dumps(evolve(fake(), trainer=trainer, placement=placement)), encoding="utf-8")
    command = [sys.executable, "-m", "purerl_cli", "train", str(file), "--directory", str(directory / "run")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return _stacks(directory / "run")
    finally:
        run.send_signal(signal.SIGINT)
        try:
            run.communicate(timeout=DEADLINE)
        finally:
            run.kill()


def _stacks(directory: Path) -> list[Stacks]:
    """The stacks of a run in which a process hangs.

    The processes answer up to a second apart, so another one can have answered just before that one began to hang. Only
    the next request shows all of them in that state.
    """
    end = time.monotonic() + DEADLINE
    while True:
        with suppress(InputError):  # the run has not begun
            if any(HANGS.search(answer.text or "") for answer in request_stacks(directory, DEADLINE)):
                return request_stacks(directory, DEADLINE)
        assert time.monotonic() < end
        time.sleep(0.5)
