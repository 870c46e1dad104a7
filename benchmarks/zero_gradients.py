"""Optimizer steps in which no group has an advantage, taken or skipped (`trainer.skip_zero_gradients`).

    python benchmarks/zero_gradients.py                     three seeds, two learning rates: ten minutes of CPU

The task and the model are those of the recipe `addition`, with GRPO and one group of four completions in each optimizer
step, so that many steps have equal rewards only. A row is a run of 40 steps with eight optimizer steps each.

    zero     share of optimizer steps whose gradient is 0
    kl       mean of `policy/approx_kl` of steps in which all eight gradients are 0, and the largest one
    before, best, after    accuracy on 200 other problems, at the start, at most, and at the end
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean
from typing import Any

from attrs import evolve

import purerl
from purerl.algos import grpo
from purerl.config.schema import RunConfig
from purerl.recipes import resolve
from purerl.settings import Model

STEPS = 40


def main(rates: Sequence[float], seeds: Sequence[int]) -> None:
    """Print a row for each learning rate, seed and value of the setting."""
    print("     lr seed  skip   zero  kl: mean      max  before   best  after")
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as null:
        for seed in seeds:
            start, base = Path(folder) / f"start-{seed}", resolve("addition", [f"seed={seed}", "max_steps=1"])
            with redirect_stdout(null):
                purerl.train(base, directory=start)
            for rate in rates:
                for skips in (False, True):
                    directory = Path(folder) / f"{seed}-{rate}-{skips}"
                    with redirect_stdout(null):
                        purerl.train(_run(base, start, rate=rate, skips=skips), directory=directory)
                    print(f"{rate:>7.0e} {seed:>4} {'yes' if skips else 'no':>5} {_measured(directory)}", flush=True)


def _run(base: Any, start: Path, *, rate: float, skips: bool) -> RunConfig:
    """GRPO from the initial run in the directory `start`."""
    return evolve(
        base,
        name="zero-gradients",
        prepare_data=None,
        initial_run=None,
        model=Model(str(start / "initial_run" / "final")),
        data=str(start / "prepared" / "train.parquet"),
        algorithm=grpo.Config(),
        max_steps=STEPS,
        batch_size=8,
        num_minibatches=8,
        rollout=evolve(base.rollout, samples_per_prompt=4),
        trainer=evolve(base.trainer, lr=rate, skip_zero_gradients=skips),
        evaluate=evolve(base.evaluate, data=str(start / "prepared" / "held_out.parquet"), every=5, max_examples=200),
    )


def _measured(directory: Path) -> str:
    """The numbers of the run in `directory` that the table has."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    zero = [record["policy/zero_gradient_fraction"] for record in records if record["step"]]
    moved = [record["policy/approx_kl"] for record in records if record.get("policy/zero_gradient_fraction") == 1]
    moved = moved or [0.0]
    accuracy = [record["eval/accuracy"] for record in records if "eval/accuracy" in record]
    numbers = f"{mean(zero):>6.2f} {mean(moved):>9.1e} {max(moved):>8.1e}"
    return f"{numbers} {accuracy[0]:>7.3f} {max(accuracy):>6.3f} {accuracy[-1]:>6.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="*", type=float, default=[1e-4, 5e-4])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    main(arguments.rates, arguments.seeds)
