"""The time of `purerl replay` on a run of 240 steps of the default recipe's size, under other algorithms.

    python -m benchmarks.replay [--run RUN] [--steps 240] [--repeats 3]

Each measurement is a new process: the whole command, with its start. Without `--run`, the record is made first: a real
run of two steps with 128 prompts, 8 completions and at most 4 tokens each, whose files of rollouts are copied to 240
steps. `spo` has a state of 65,536 prompts, which each step changes. The bound is 10 seconds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from attrs import evolve

from purerl.algos import grpo
from purerl.loop.train import train
from purerl.recipes.addition import addition
from purerl.settings import Model
from purerl.store.step_files import step_path

ALGORITHMS = ("rloo", "dapo", "gspo", "reinforce", "spo")
BOUND = 10.0


def make_record(path: Path, steps: int) -> Path:
    """A run of two steps in the directory `path`, whose rollouts are copied to `steps` steps."""
    changes = {"initial_run": None, "model": Model("{run}/prepared/model"), "evaluate": None, "max_steps": 2}
    config = addition()
    trainer = evolve(config.trainer, warmup_ratio=None)
    train(evolve(config, **changes, algorithm=grpo.Config(), trainer=trainer), directory=path)
    for step in range(3, steps + 1):
        shutil.copy(step_path(path / "rollouts", 1 + step % 2), step_path(path / "rollouts", step))
    return path


def measure(run: Path, algorithm: str, steps: int) -> tuple[float, float]:
    """Seconds of the command, and CPU seconds of its process."""
    command = [sys.executable, "-m", "purerl_cli", "replay", str(run), "--algorithm", algorithm, "--steps", f"-{steps}"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or make_record(Path(folder) / "run", arguments.steps)
        print(f"{'algorithm':<24}{'seconds':>10}{'CPU seconds':>14}   bound {BOUND:g}")
        for algorithm in ALGORITHMS:
            pairs = [measure(run, algorithm, arguments.steps) for _ in range(arguments.repeats)]
            seconds, cpu = (median(column) for column in zip(*pairs, strict=True))
            print(f"{algorithm:<24}{seconds:>10.1f}{cpu:>14.1f}   {'ok' if seconds < BOUND else 'too slow'}")


if __name__ == "__main__":
    main()
