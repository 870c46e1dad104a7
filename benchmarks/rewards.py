"""Scoring of completions in worker processes: one blocking call with all inputs, and many calls of coroutines.

    python benchmarks/rewards.py [--calls 1024] [--inputs 16] [--workers 2]

The function is trivial and has a name, so it runs in workers. `cpu` is the CPU time of this process, without that of
the workers. The variants alternate, and the table shows the median and the minimum of the repetitions.

Beside other work on two cores, five repetitions: all calls at once took 0.92 times the elapsed time of one blocking
call (median; 1.07 times in the minimum), and 1.27 times the CPU time of this process (1.37 times in the minimum).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from statistics import median

from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner

NAME = "purerl.rewards.exact:exact_match"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("calls", 1024), ("inputs", 16), ("workers", 2), ("repetitions", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    calls = [make_inputs(call, options.inputs) for call in range(options.calls)]
    everything = [item for call in calls for item in call]

    async def score_calls(runner: RewardRunner) -> None:
        await asyncio.gather(*map(runner.score, calls))

    async def score_one_after_the_other(runner: RewardRunner) -> None:
        for call in calls:
            await runner.score(call)

    variants: dict[str, Callable[[RewardRunner], object]] = {
        "one blocking call": lambda runner: runner.run(everything),
        "all calls at once": lambda runner: asyncio.run(score_calls(runner)),
        "one call after the other": lambda runner: asyncio.run(score_one_after_the_other(runner)),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    with RewardRunner([NAME], functions={}, timeout=60.0, num_workers=options.workers) as runner:
        runner.run(everything)  # the workers have started
        for _ in range(options.repetitions):
            for name, variant in variants.items():
                times[name].append(measure(variant, runner))
    print(f"{options.calls} calls of {options.inputs} inputs, {options.workers} workers, milliseconds per call")
    print(f"{'':26}{'elapsed':>10}{'minimum':>10}{'cpu':>10}{'minimum':>10}")
    for name, measured in times.items():
        columns = [1000 / options.calls * f(column) for column in zip(*measured, strict=True) for f in (median, min)]
        print(f"{name:26}" + "".join(f"{value:10.3f}" for value in columns))


def make_inputs(call: int, number: int) -> list[RewardInput]:
    example = {"answer": str(call), "prompt": "What is the number? " * 20}
    return [RewardInput(f"{call}/{k}", str(k) * 100, example, seed=k) for k in range(number)]


def measure(variant: Callable[[RewardRunner], object], runner: RewardRunner) -> tuple[float, float]:
    """Elapsed time and CPU time of this process, in seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    variant(runner)
    return time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
    main()
