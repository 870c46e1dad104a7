"""The cost of episodes that wait for each other in each turn (`environment.lockstep`).

    python -m benchmarks.lockstep [--environments 64] [--repeats 3]

An episode has 4 turns of 32 to 64 tokens, and there is an answer after each turn but the last. All episodes are in
flight together.

    decoding   CPU seconds of the sampling process, the median of `--repeats`, if answers take no time. In lockstep, the
               last rows of a turn are decoded alone. The model is a Qwen2 model with a million parameters
    waiting    how long answers delay the last episode, in multiples of their mean time, if decoding takes no time. This
               is computed from random times, not measured: in lockstep the slowest answer of each turn counts,
               otherwise the slowest episode
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from statistics import median

import torch

from benchmarks.environments import TURNS, Episodes
from benchmarks.generator import VOCABULARY, tiny_model
from purerl.backends.hf.generator import Config
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.settings import Model
from purerl.system.garbage import gc_frozen

SAMPLES = 10_000
DISTRIBUTIONS = {
    "equal": torch.ones,
    "uniform": lambda *size: 2 * torch.rand(*size),
    "exponential": lambda *size: torch.empty(*size).exponential_(),
    "one of 50 takes 20 times as long": lambda *size: torch.where(torch.rand(*size) < 0.02, 20.0, 1.0) / 1.38,
}


def decoding(number: int, repeats: int) -> dict[bool, float]:
    """CPU seconds until `number` episodes are over, in lockstep (True) and without."""
    torch.set_num_threads(1)
    generator = HFGenerator(Config(max_num_seqs=256, device="cpu"), tiny_model().eval(), Model("none"))
    settings = {"run_in": "event_loop", "tool": 0.0, "vocabulary": VOCABULARY}
    episodes = {lockstep: Episodes(generator, number, lockstep=lockstep, **settings) for lockstep in (True, False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with gc_frozen():
        for repeat in range(repeats + 1):
            for lockstep, each in episodes.items():
                start = time.process_time()
                each.run()
                seconds[lockstep] += [time.process_time() - start] if repeat else []  # the first one is a warm-up
    for each in episodes.values():
        each.runtime.close()
    return {lockstep: median(values) for lockstep, values in seconds.items()}


def waiting(number: int, name: str) -> dict[bool, float]:
    """The mean time until the last of `number` episodes is over, in lockstep (True) and without."""
    torch.manual_seed(0)
    times = DISTRIBUTIONS[name](SAMPLES, number, TURNS - 1)
    return {True: times.amax(1).sum(1).mean().item(), False: times.sum(2).amax(1).mean().item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<44}{'lockstep':>10}{'without':>10}{'ratio':>8}")
    rows = {f"waiting, {name}": lambda name=name: waiting(options.environments, name) for name in DISTRIBUTIONS}
    rows["decoding, CPU seconds"] = lambda: decoding(options.environments, options.repeats)
    for label, compute in rows.items():
        result = compute()
        print(f"{label:<44}{result[True]:>10.2f}{result[False]:>10.2f}{result[True] / result[False]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
