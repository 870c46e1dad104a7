"""The commands of the board: add, run and page."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.board import __doc__ as description
from benchmarks.board.curve import CURVE, curve, lines_of, read_trl
from benchmarks.board.figure import FIGURE, figure
from benchmarks.board.page import PAGE, group_results, page, read_published
from benchmarks.board.readme import README, with_results
from benchmarks.board.result import read_results, result_of, store
from purerl.errors import PurerlError

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def add(runs: Sequence[Path]) -> None:
    """Store the results of `runs`, and print them."""
    results = [result_of(run) for run in runs]
    for result in results:
        path = store(result)
        before, after = (result[when].get("eval/accuracy", float("nan")) for when in ("before", "after"))
        accuracy = f"{before:.3f} to {after:.3f}"
        print(f"{result['command']}  accuracy {accuracy}  CPU s {result['cpu_seconds']:.1f}  {path.name}", flush=True)


def run(recipe: str, seeds: Sequence[int], settings: Sequence[str]) -> None:
    """Train `recipe` with each of `seeds`, each in a process of its own, and store the results."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "run"
            command = [sys.executable, "-m", "purerl_cli", "train", recipe, f"seed={seed}", *settings]
            done = subprocess.run(
                [*command, "--directory", str(directory)],
                check=False,
                env={**os.environ, **_ENVIRONMENT},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                sys.exit(done.stdout[-4000:])
            add([directory])


def write_page() -> None:
    """Write the page, the figures, and the results in README.md."""
    results, published, trl = read_results(), read_published(), read_trl()
    groups = group_results(results)
    lines = lines_of(groups, trl)
    PAGE.write_text(page(results, published), encoding="utf-8")
    if lines:
        CURVE.write_text(curve(lines, published), encoding="utf-8")
    FIGURE.write_text(figure(groups), encoding="utf-8")
    README.write_text(with_results(README.read_text(encoding="utf-8"), groups, trl), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="store the results of finished runs")
    adding.add_argument("runs", nargs="+", type=Path)
    running = commands.add_parser("run", help="train a recipe or a TOML file, and store the results")
    running.add_argument("recipe")
    running.add_argument("--seeds", nargs="+", type=int, default=[0])
    running.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the recipe")
    commands.add_parser("page", help="write docs/reference/results.md, the figures, and the results in README.md")
    options = parser.parse_args()
    try:
        if options.command == "add":
            add(options.runs)
        elif options.command == "run":
            run(options.recipe, options.seeds, options.set)
        else:
            write_page()
    except PurerlError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
