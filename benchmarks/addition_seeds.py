"""The result of the default recipe with several seeds.

    python benchmarks/addition_seeds.py 0 1 2 3 4

For each seed it prints the held-out accuracy before and after RL, the steps of the SFT run, and seconds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from attrs import evolve

import purerl
from purerl.recipes.addition import addition


def main(seeds: list[int], max_steps: int) -> None:
    """Print a row for each of `seeds`."""
    print(f"{'seed':>4} {'before':>7} {'after':>6} {'SFT steps':>10} {'CPU s':>6} {'wall s':>7}", flush=True)
    for seed in seeds:
        wall, cpu = time.perf_counter(), time.process_time()
        config = evolve(addition(max_steps), seed=seed)
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as null:
            with redirect_stdout(null):
                summary = purerl.train(config, directory=Path(folder) / "run")
            sft_steps = json.loads((summary.directory / "initial_run" / "summary.json").read_text())["steps"]
        before, after = summary.before["eval/accuracy"], summary.after["eval/accuracy"]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(f"{seed:>4} {before:>7.3f} {after:>6.3f} {sft_steps:>10} {cpu:>6.1f} {wall:>7.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--max-steps", type=int, default=240, help="steps of the RL run")
    options = parser.parse_args()
    main(options.seeds, options.max_steps)
