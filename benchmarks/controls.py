"""A recipe with several seeds, and for each a control: the same run with rewards that are shuffled within each group.

    python -m benchmarks.controls char_count /tmp/char_count --seeds 0 1 2

Each seed has a run directory, seed-N, and its control another, control-N, with the data and the initial run of the
seed. What is finished is not done again. For each run it prints the accuracy after some steps, CPU seconds with all
processes, and the peak of the memory.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

import purerl
from purerl.composition import Composition
from purerl.loop.train import claim_directory
from purerl.recipes import resolve
from tests.recipes import shuffled

_USAGE = "usage.json"


def main(recipe: str, folder: Path, seeds: Sequence[int], settings: Sequence[str]) -> None:
    """Do the runs that are missing, each in a process of its own, and print a row for each."""
    folder.mkdir(exist_ok=True, parents=True)
    print(f"{'run':>10} {'SFT steps':>9} {'CPU s':>7} {'GiB':>5}  accuracy after some steps", flush=True)
    for seed in seeds:
        for kind in ("seed", "control"):
            run = folder / f"{kind}-{seed}"
            if not (run / _USAGE).is_file():
                with (folder / f"{run.name}.log").open("w") as log:
                    command = [sys.executable, "-m", "benchmarks.controls", recipe, str(folder), "--run", run.name]
                    subprocess.run([*command, *settings], stdout=log, stderr=log, check=True)
            print(_row(run), flush=True)


def train(recipe: str, folder: Path, name: str, settings: Sequence[str]) -> None:
    """Do one run, seed-N or control-N, in `folder`."""
    kind, _, seed = name.partition("-")
    config, run = resolve(recipe, [f"seed={seed}", *settings]), folder / name
    if kind == "control":
        config = evolve(config, algorithm=Composition(shuffled.Config(), config.algorithm.modifiers))
    if kind == "control" and not run.exists():
        claim_directory(run, config).release()
        parts = [folder / f"seed-{seed}" / part for part in ("prepared", "initial_run")]
        for part in filter(Path.exists, parts):
            shutil.copytree(part, run / part.name, copy_function=os.link)
    purerl.train(config, directory=run)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    usage = {"cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used), "peak_gib": used[0].ru_maxrss / 2**20}
    (run / _USAGE).write_text(json.dumps(usage))


def _row(run: Path) -> str:
    usage = json.loads((run / _USAGE).read_text())
    summary = run / "initial_run" / "summary.json"
    initial = json.loads(summary.read_text())["steps"] if summary.is_file() else 0
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    curve = [(record["step"], record["eval/accuracy"]) for record in records if "eval/accuracy" in record]
    accuracy = "  ".join(f"{step}: {value:.3f}" for step, value in curve)
    return f"{run.name:>10} {initial:>9} {usage['cpu_seconds']:>7.0f} {usage['peak_gib']:>5.1f}  {accuracy}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--run", help="do only this run: seed-N or control-N")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the recipe")
    options = parser.parse_args()
    if options.run:
        train(options.recipe, options.folder, options.run, options.set)
    else:
        main(options.recipe, options.folder, options.seeds, [f"--set={setting}" for setting in options.set])
