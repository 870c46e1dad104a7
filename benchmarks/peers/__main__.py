r"""Every estimator and loss, and the same function of verl, torchrl and OpenRLHF; see `requirements.txt`.

    .venv-peers/bin/python -m benchmarks.peers [--only NAME ...] [--shapes 64x1024 ...] [--seconds 1] \
        > docs/reference/speed.md

CPU time in one process with one thread. The libraries are called alternately, and the minimum of each is printed. The
default shapes are three sizes of batches, and 4,096 short rows for functions over groups. `bandwidth` is the time of
purerl divided by the time to read each input and write each output once, at the speed of a copy, which is measured
alternately with the functions. The process keeps freed memory, like the caching allocators of accelerators. Otherwise
the time to map new pages would be part of the measurement.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.peers.batch import SLACK, Batch, Row, draw
from benchmarks.peers.estimators import GROUPS, RECURRENCES
from benchmarks.peers.laws import broken_laws
from benchmarks.peers.objectives import LOSSES
from purerl.system.allocator import disable_malloc_trim

MANY_ROWS = (4096, 256)
COPY = "copy"
NOISE = 0.95


def measure(row: Row, batch: Batch, seconds: float) -> dict[str, float]:
    """The minimum CPU milliseconds of each library, and of a copy of one field. It takes about `seconds`."""
    functions: dict[str, Callable[[Batch], object]] = {COPY: lambda b: b.reward.clone(), **row.functions}
    best, first, rounds = dict.fromkeys(functions, float("inf")), time.process_time(), 0
    while rounds < 3 or time.process_time() - first < seconds:
        for name, function in functions.items():
            start = time.process_time()
            function(batch)
            best[name] = min(best[name], 1e3 * (time.process_time() - start))
        rounds += 1
    return best


def line(row: Row, shape: tuple[int, int], times: dict[str, float], laws: dict[str, list[str]]) -> str:
    """A line of the table."""
    times = dict(times)
    copy, purerl = times.pop(COPY), times.pop("purerl")
    is_met = all(
        milliseconds >= target(row, shape, library, has_broken=bool({*laws[library]} - {*laws["purerl"]})) * purerl
        for library, milliseconds in times.items()
    )
    # A mask has one byte per token, and a float has four. A copy reads and writes one field.
    limit = copy * (row.floats + 0.25) / 2
    others = ", ".join(f"{library} {x:.2f} ({x / purerl:.1f}x)" for library, x in times.items())
    return (
        f"| {row.name} | {_size(shape)} | {purerl:.2f} | {others} | {purerl / limit:.0f}x | {'✓' if is_met else '✗'} |"
    )


def _size(shape: tuple[int, int]) -> str:
    return "{:,} x {:,}".format(*shape)


def slower(row: Row, shape: tuple[int, int], times: dict[str, float], laws: dict[str, list[str]]) -> list[str]:
    """A line for each library that is faster than purerl by more than the noise of the measurement."""
    purerl = times["purerl"]
    return [
        f"| {row.name} | {_size(shape)} | {library} | {purerl / x:.1f}x | "
        f"{', '.join(law for law in laws[library] if law not in laws['purerl'])} |"
        for library, x in times.items()
        if library not in (COPY, "purerl") and x < NOISE * purerl
    ]


def target(row: Row, shape: tuple[int, int], library: str, *, has_broken: bool) -> float:
    """The minimum ratio of the time of `library` to the time of purerl.

    `has_broken` is whether `library` breaks a law that purerl satisfies. It has no target then, unless the row has a
    target of its own.
    """
    if row.grouped:
        return row.verl_target if library == "verl" and shape == MANY_ROWS else 0.0 if has_broken else SLACK
    ratio = row.verl_target if library == "verl" else row.other_target
    return 0.0 if has_broken and ratio == SLACK else ratio


def version_of(library: str) -> str:
    """The version of `library`, or "not installed": such a library is not measured."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--shapes", nargs="*", default=["64x1024", "512x4096", "256x16384", "4096x256"])
    parser.add_argument("--seconds", type=float, default=1.0, help="time per line, approximately")
    options = parser.parse_args()
    torch.set_num_threads(1)
    disable_malloc_trim()
    rows = [row for row in (*RECURRENCES, *GROUPS, *LOSSES) if not options.only or row.name in options.only]
    laws = {
        row.name: {library: broken_laws(f, grouped=row.grouped) for library, f in row.functions.items()} for row in rows
    }
    faster: list[str] = []
    print(HEAD.format(**{name: version_of(name) for name in ("torch", "verl", "torchrl", "openrlhf")}))
    for rows_time in options.shapes:
        shape = tuple(int(length) for length in rows_time.split("x"))
        batch = draw(*shape)
        for row in rows:
            if shape != MANY_ROWS or row.grouped:
                times = measure(row, batch, options.seconds)
                print(line(row, shape, times, laws[row.name]), flush=True)
                faster += slower(row, shape, times, laws[row.name])
    print("\n".join([FASTER_HEAD, *faster]))
    print(LAWS_HEAD)
    for name, libraries in laws.items():
        for library, broken in libraries.items():
            if broken:
                print(f"| {name} | {library} | {', '.join(broken)} |")


HEAD = """# Speed

    .venv-peers/bin/python -m benchmarks.peers > docs/reference/speed.md

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

FASTER_HEAD = """
## Where another library is faster

All cases in which a library takes less than 0.95 times the time of purerl, also where `met` has a tick. The last column
has the laws of the next section that the function of this library does not satisfy, and the one of purerl does.

| function | rows x time | library | faster by | laws that it breaks |
|---|---|---|---|---|"""

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
