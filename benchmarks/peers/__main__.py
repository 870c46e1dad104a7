"""Every estimator and loss beside the same function of verl, torchrl and OpenRLHF; see `requirements.txt`.

    .venv-peers/bin/python -m benchmarks.peers [--only NAME ...] [--shapes 64x1024 ...] [--seconds 1] > docs/speed.md

One process, one thread, CPU time; the sides take turns, and the best of each counts. The shapes are those of the
issue, and 4,096 short rows for what looks at groups. `bandwidth`: our time over the time that it takes to read and
write once what must be, at the speed of a copy that takes its turn between the sides. Memory that is freed is kept
by the process, as the caching allocators of accelerators do: else the first touch of fresh pages is measured.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version

import torch

from benchmarks.peers.batch import SLACK, Batch, Row, draw
from benchmarks.peers.estimators import GROUPS, RECURRENCES
from benchmarks.peers.laws import broken
from benchmarks.peers.objectives import LOSSES
from purerl.backends.hf.allocator import keep_memory

MANY_ROWS = (4096, 256)
COPY = "copy"


def measure(row: Row, batch: Batch, seconds: float) -> dict[str, float]:
    """The least CPU milliseconds of each side, and of a copy of one field; about so many seconds for all of them."""
    sides: dict[str, Callable[[Batch], object]] = {COPY: lambda b: b.reward.clone(), **row.sides}
    best, begin, rounds = dict.fromkeys(sides, float("inf")), time.process_time(), 0
    while rounds < 3 or time.process_time() - begin < seconds:
        for name, side in sides.items():
            start = time.process_time()
            side(batch)
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
        rounds += 1
    return best


def compare(row: Row, shape: tuple[int, int], batch: Batch, laws: dict[str, list[str]], seconds: float) -> str:
    """A line of the table."""
    best = measure(row, batch, seconds)
    copy, ours = best.pop(COPY), best.pop("purerl")
    met = all(
        theirs >= asked(row, shape, side, [law for law in laws[side] if law not in laws["purerl"]]) * ours
        for side, theirs in best.items()
    )
    limit = copy * (row.floats + 0.25) / 2
    theirs = ", ".join(f"{name} {x:.2f} ({x / ours:.1f}x)" for name, x in best.items())
    size = "{:,} x {:,}".format(*shape)
    return f"| {row.name} | {size} | {ours:.2f} | {theirs} | {ours / limit:.0f}x | {'✓' if met else '✗'} |"


def asked(row: Row, shape: tuple[int, int], side: str, failed: list[str]) -> float:
    """How many times as long as ours a side should take, at least.

    A side that breaks laws that ours keeps is only asked about where the demand names it: the recurrences, at any rate.
    """
    if row.grouped:
        return row.faster if side == "verl" and shape == MANY_ROWS else 0.0 if failed else SLACK
    demand = row.faster if side == "verl" else row.peers
    return 0.0 if failed and demand == SLACK else demand


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--shapes", nargs="*", default=["64x1024", "512x4096", "256x16384", "4096x256"])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line, about")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = [row for row in (*RECURRENCES, *GROUPS, *LOSSES) if not options.only or row.name in options.only]
    laws = {row.name: {side: broken(f, grouped=row.grouped) for side, f in row.sides.items()} for row in rows}
    print(HEAD.format(**{name: version(name) for name in ("torch", "verl", "torchrl", "openrlhf")}))
    for rows_time in options.shapes:
        shape = tuple(int(length) for length in rows_time.split("x"))
        batch = draw(*shape)
        for row in rows:
            if shape != MANY_ROWS or row.grouped:
                print(compare(row, shape, batch, laws[row.name], options.seconds), flush=True)
    print("\n## Laws that do not hold\n\n| function | side | laws |\n|---|---|---|")
    for name, sides in laws.items():
        for side, failed in sides.items():
            if failed:
                print(f"| {name} | {side} | {', '.join(failed)} |")


HEAD = """# Speed

    .venv-peers/bin/python -m benchmarks.peers > docs/speed.md

`benchmarks/peers/requirements.txt` says how to make that environment. CPU time in milliseconds, one thread, two cores
that others use as well, no GPU: only ratios mean anything. In brackets, how many times as long as ours a peer takes.
torch {torch}, verl {verl}, torchrl {torchrl}, OpenRLHF {openrlhf}; TRL has its losses in its trainer, not as functions.

- Losses are value and gradient. Peers compute their metrics in the same call; our functions have none, and a whole
  `evaluate`, which has, and puts 0 where nobody acts, takes longer than what stands here. Divergences are reduced by
  `token_mean` on all sides, for they are functions of a token.
- The allocator is told to keep freed memory, on all sides: large tensors are then not fetched page by page again.
- bandwidth: how many times as long as reading and writing once what must be, at the speed of a copy in the same run.
- Below, laws are tried on bare functions. In purerl `advantages` and `evaluate` put 0 where nobody acts before a loss
  sees it, so that NaN there is inert for all of them. gpg and gdpo have statistics of the whole batch on purpose, so
  that parts of it (`irregular`) are another thing.
- met: recurrences ten times as fast as verl, and three times as fast as the other peers; estimators over groups ten
  times as fast as verl over 4,096 rows; for the rest, at most 1.1 times the time of every peer that breaks no
  law that ours keeps. ReMax's returns and the optimal token baseline are held to this last mark.

| function | rows x time | purerl | peers | bandwidth | met |
|---|---|---|---|---|---|"""

if __name__ == "__main__":
    main()
