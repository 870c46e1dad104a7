"""The result of a recipe with several seeds.

    python -m benchmarks.recipe_seeds addition
    python -m benchmarks.recipe_seeds calculator --seeds 0 1 --set algorithm.kind=tests.recipes.shuffled

For each seed it prints the steps of the initial run, the accuracy before, during and after the run, and seconds. With
the algorithm `tests.recipes.shuffled`, which shuffles the rewards of each group, a recipe should learn nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import purerl
from purerl.recipes import resolve

_COLUMNS = 5  # evaluations between the first and the last one that are printed


def main(recipe: str, seeds: Sequence[int], settings: Sequence[str]) -> None:
    """Print a row for each of `seeds`."""
    header = f"{'seed':>4} {'initial steps':>13} {'before':>7} {'after':>6} {'CPU s':>6} {'wall s':>7}"
    print(f"{header}  accuracy after some steps", flush=True)
    for seed in seeds:
        wall, cpu = time.perf_counter(), time.process_time()
        config = resolve(recipe, [f"seed={seed}", *settings])
        with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as null:
            with redirect_stdout(null):
                summary = purerl.train(config, directory=Path(folder) / "run")
            initial = json.loads((summary.directory / "initial_run" / "summary.json").read_text())["steps"]
            curve = _curve(summary.directory)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        before, after = summary.before["eval/accuracy"], summary.after["eval/accuracy"]
        print(f"{seed:>4} {initial:>13} {before:>7.3f} {after:>6.3f} {cpu:>6.1f} {wall:>7.1f}  {curve}", flush=True)


def _curve(directory: Path) -> str:
    """Some evaluations of the run in `directory`, evenly spaced."""
    records = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    measured = [(record["step"], record["eval/accuracy"]) for record in records if "eval/accuracy" in record]
    between = measured[1:-1]
    stride = -(-len(between) // _COLUMNS) or 1
    return "  ".join(f"{step}: {accuracy:.3f}" for step, accuracy in between[stride - 1 :: stride])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the recipe")
    options = parser.parse_args()
    main(options.recipe, options.seeds, options.set)
