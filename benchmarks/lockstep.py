"""Episodes that wait for each other in each turn (`environment.lockstep`), beside episodes that do not.

    python -m benchmarks.lockstep [--environments 64] [--repeats 3]

One thread samples, and the environments are in worker processes. An episode has 4 turns of 32 to 64 tokens, and there is
an answer after each turn but the last. The times of answers are equal, uniform or exponential, with the same mean. All
episodes are in flight together. The table has the seconds until all of them are over, the median of `--repeats`.
Seconds are CPU time of the sampling process and the time in which it waits for environments: on an idle machine, that is
the wall time. The model is a Qwen2 model with a million parameters.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import time
from statistics import median
from typing import get_args

import torch

from benchmarks.environments import Episodes, Times
from benchmarks.generator import VOCABULARY, tiny_model
from purerl.backends.hf.generator import Config
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.settings import Model
from purerl.system.process import gc_frozen

MEANS = (0.0, 0.05, 0.5, 2.0)


def seconds_of(episodes: Episodes) -> float:
    """The seconds until all episodes are over."""
    start = time.process_time()
    _, idle = episodes.run()
    return time.process_time() - start + idle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = HFGenerator(Config(max_num_seqs=256, device="cpu"), tiny_model().eval(), Model("none"))
    print(f"{'mean answer':>12}  {'times':<12}{'lockstep':>10}{'without':>10}{'ratio':>8}")
    for mean in MEANS:
        for times in get_args(Times)[: 3 if mean else 1]:
            measured: dict[bool, float] = {}
            for lockstep in (True, False):
                changes = {"tool": mean, "times": times, "lockstep": lockstep, "vocabulary": VOCABULARY}
                episodes = Episodes(generator, options.environments, run_in="process", **changes)
                try:
                    episodes.run()  # warm-up: the processes start
                    with gc_frozen():
                        measured[lockstep] = median(seconds_of(episodes) for _ in range(options.repeats))
                finally:
                    episodes.runtime.close()
            ratio = measured[True] / measured[False]
            print(
                f"{mean:>10.2f} s  {times:<12}{measured[True]:>9.2f}s{measured[False]:>9.2f}s{ratio:>8.2f}", flush=True
            )


if __name__ == "__main__":
    main()
