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
    print(LAWS_HEAD)
    for name, sides in laws.items():
        for side, failed in sides.items():
            if failed:
                print(f"| {name} | {side} | {', '.join(failed)} |")


HEAD = """# Speed

    .venv-peers/bin/python -m benchmarks.peers > docs/speed.md

This page compares functions of purerl with the same functions of other libraries. The file
`benchmarks/peers/requirements.txt` describes the environment. Times are milliseconds of CPU time, with one thread and
without a GPU, on two cores that other processes use too. Only ratios are meaningful. In parentheses is the time of the
other library divided by the time of purerl. Versions: torch {torch}, verl {verl}, torchrl {torchrl}, OpenRLHF
{openrlhf}. TRL is missing because its losses are part of its trainer.

- **Losses** include the gradient. The other libraries compute metrics in the same call, and purerl's loss functions do
  not. A complete `compute_loss`, which computes metrics and sets values outside of action tokens to 0, takes longer
  than the times in the table. Divergences are functions of one token, so they are reduced by `token_mean` in all
  libraries.
- **Memory**: the allocator keeps freed memory, for all libraries. Otherwise the time to map new pages of large tensors
  would be part of the measurement.
- **bandwidth**: the time of purerl divided by the time to read each input and write each output once, at the speed of a
  copy in the same run.
- **met**: whether the time of purerl reaches its target. Recurrences: ten times as fast as verl, and three times as
  fast as the other libraries. Estimators over groups: ten times as fast as verl with 4,096 rows. All other functions,
  and also ReMax's returns and the optimal token baseline: at most 1.1 times the time of every library that breaks no
  law that purerl satisfies.

| function | rows x time | purerl | other libraries | bandwidth | met |
|---|---|---|---|---|---|"""

LAWS_HEAD = """
## Laws that do not hold

The laws are tested on the bare functions:

- `padding`: more columns without action tokens change nothing.
- `holes`: removing the tokens between action tokens changes nothing.
- `tool_reward`: a reward on a tool's token counts as a reward on the action token before it.
- `nan`: NaN outside of action tokens has no effect.
- `inputs`: no input is modified.
- `sync`: the function runs on tensors without values, so the host never waits for the device.
- `labels`: labels of groups are only names.
- `irregular`: groups may have different sizes, and a group with one row gets 0.

In purerl, `compute_advantages` and `compute_loss` set values outside of action tokens to 0 before they call a function,
so NaN there has no effect on any algorithm. `gpg` and `gdpo` use statistics of the whole batch by design, so they do
not satisfy `irregular`.

| function | library | laws |
|---|---|---|"""

if __name__ == "__main__":
    main()
