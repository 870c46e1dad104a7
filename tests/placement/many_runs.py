"""``torchrun tests/placement/many_runs.py DIRECTORY KIND NUMBER``: a script with a loop of runs, some of which fail.

Each rank writes ``DIRECTORY/rank-R.jsonl``: how each run has ended, its seconds, and the threads and open files then.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import evolve

from purerl.backends.hf.mesh import Mesh
from purerl.config.schema import RunConfig
from purerl.loop.callbacks import Callbacks
from purerl.loop.train import train
from tests.loop.small import fake, small_real

KINDS: Mapping[str, Callable[[], RunConfig]] = {
    "fake": lambda: fake(2, evaluate=None),
    "divided": lambda: evolve(
        config := small_real(1, evaluate=None), trainer=evolve(config.trainer, mesh=Mesh(shard=2))
    ),
}
HELD = ("task", "fd")  # threads, and open files
FAILURES = {3: ("raise", 1), 6: ("interrupt", 0), 9: ("raise", 0), 12: ("interrupt", 1), 15: ("interrupt", None)}
"""By number of a run: what happens before its second step, and the rank; None: all."""


def short(completion: str, example: object) -> float:
    """A reward function of the script: no workers start."""
    return len(completion) / 4


def main(directory: Path, kind: str, number: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.unfreeze()  # of the process that has forked this one: what is frozen is never collected
    rank, config = int(os.environ["RANK"]), evolve(KINDS[kind](), rewards=())
    with (directory / f"rank-{rank}.jsonl").open("w") as file:
        for run in range(number):
            begin = time.monotonic()
            end = one_run(config, directory / str(run), rank, *FAILURES.get(run, ("", None)))
            seconds, held = time.monotonic() - begin, [len([*Path("/proc/self", name).iterdir()]) for name in HELD]
            file.write(json.dumps([run, end, seconds, *held]) + "\n")
            file.flush()


def one_run(config: RunConfig, directory: Path, rank: int, action: str, of_rank: int | None) -> str:
    """The number of steps of the run, or the first line of its error. `action` is what `of_rank` does in it."""
    calls = []

    def should_stop() -> bool:
        calls.append(None)
        if len(calls) == 2 and of_rank in (None, rank):
            if action == "raise":
                raise ZeroDivisionError("a bug in a callback")
            if action == "interrupt":
                signal.raise_signal(signal.SIGINT)
        return False

    try:
        summary = train(config, directory=directory, rewards=[short], callbacks=Callbacks(should_stop=should_stop))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the loop continues
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"{summary.steps} steps"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
