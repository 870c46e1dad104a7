"""Does the default recipe keep its promise for any seed?

    python benchmarks/addition_seeds.py 0 1 2 3 4

For each seed: held-out accuracy before and after reinforcement learning, steps of the supervised start, seconds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from attrs import evolve

import purerl
from purerl.recipes.addition import addition


def main(seeds: list[int]) -> None:
    """Print a row for each of `seeds`."""
    print(f"{'seed':>4} {'before':>7} {'after':>6} {'start steps':>12} {'CPU s':>6} {'wall s':>7}", flush=True)
    for seed in seeds:
        wall, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
            with redirect_stdout(nowhere):
                summary = purerl.train(evolve(addition(), seed=seed), directory=Path(folder) / "run")
            start = json.loads((summary.directory / "initial_run" / "summary.json").read_text())["steps"]
        before, after = summary.before["eval/accuracy"], summary.after["eval/accuracy"]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(f"{seed:>4} {before:>7.3f} {after:>6.3f} {start:>12} {cpu:>6.1f} {wall:>7.1f}", flush=True)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2, 3, 4])
