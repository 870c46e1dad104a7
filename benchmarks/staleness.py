"""Accuracy against steps when completions are sampled with earlier weights, with and without a correction.

    python benchmarks/staleness.py                                eight seeds, in a quarter of an hour on one core
    python benchmarks/staleness.py --staleness 0 8 --seeds 0 1    some of it

The policy is a model with random weights that learns to copy four digits. A tenth of the 10,000 numbers is held out.
A step has 32 prompts with 8 completions and 2 mini-batches, and the reward is the fraction of digits that are copied.
The engine is in process, so with `max_staleness = k` a step trains completions of the weights k updates earlier, from
step k + 1 on. Three algorithms are compared:

    none               grpo: the ratio is relative to the policy at the start of the update. A run refuses it
    importance_weight  grpo with algorithm.importance_weight=true
    bypass             grpo with algorithm.bypass=true

All of them have an entropy bonus of 0.05. Without staleness, the corrections change nothing but rounding: only `none`
is run.

The results are stored in benchmarks/results/staleness.json: for each seed the accuracy of greedy decoding on 250
held-out numbers. Runs whose results are stored are not repeated. docs/images/staleness.py makes the figure and the
table of docs/explanation/asynchronous.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import purerl
from purerl.algos import grpo
from purerl.algos.modifiers import bypass, entropy_bonus, importance_weight
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import write_small_model
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Evaluate
from purerl.recipes.addition import character_tokenizer
from purerl.rewards.settings import Reward
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint

_RESULTS = Path(__file__).parent / "results" / "staleness.json"

_DIGITS = 4
_CORRECTIONS: Mapping[str, tuple[Any, ...]] = {
    "none": (),
    "importance_weight": (importance_weight.Config(),),
    "bypass": (bypass.Config(),),
}


def correct_digits(completion: str, example: Mapping[str, Any]) -> float:
    """The fraction of digits that are copied."""
    return sum(a == b for a, b in zip(completion, example["prompt"][:_DIGITS], strict=False)) / _DIGITS


def is_copied(completion: str, example: Mapping[str, Any]) -> float:
    """1 if all digits are copied."""
    return float(completion == example["prompt"][:_DIGITS])


def prepare(folder: Path, seed: int) -> None:
    """Write the numbers, and a model with random weights, into `folder`."""
    numbers = random.Random(seed).sample(range(10**_DIGITS), 10**_DIGITS)
    for name, part in {"train": numbers[1000:], "held_out": numbers[:1000]}.items():
        lines = [json.dumps({"prompt": f"{number:0{_DIGITS}d}="}) + "\n" for number in part]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    write_small_model(folder / "model", character_tokenizer(), seed=seed, max_length=16)


def config_of(correction: str, staleness: int, seed: int, *, steps: int, lr: float) -> RunConfig:
    """The run with `correction` and with `max_staleness` = `staleness`."""
    return RunConfig(
        name="staleness",
        seed=seed,
        prepare_data="staleness:prepare",
        model=Model("{run}/prepared/model"),
        data="{run}/prepared/train.jsonl",
        algorithm=Composition(grpo.Config(), (*_CORRECTIONS[correction], entropy_bonus.Config(coef=0.05))),
        max_steps=steps,
        batch_size=32,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_DIGITS, max_staleness=staleness),
        generator=generator.Config(max_num_seqs=256, device="cpu"),
        trainer=trainer.Config(lr=lr, betas=(0.9, 0.99), max_grad_norm=1.0, device="cpu"),
        evaluate=Evaluate(
            data="{run}/prepared/held_out.jsonl",
            every=10,
            max_examples=250,
            max_tokens=_DIGITS,
            accuracy_reward="is_copied",
        ),
        checkpoint=Checkpoint(every=10_000, keep=1),
        num_threads=1,
    )


def accuracies(config: RunConfig) -> dict[int, float]:
    """The held-out accuracy of a run, by step. Nothing is refused, so that algorithms without a correction can run."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as null:
        with redirect_stdout(null), mock.patch("purerl.config.check.check_reuse"):
            purerl.train(config, rewards=[correct_digits, Reward(is_copied, weight=0)], directory=Path(folder) / "run")
        records = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["eval/accuracy"] for record in records if "eval/accuracy" in record}


def measure(options: argparse.Namespace) -> None:
    """Do the runs that are not stored yet, and store their results: accuracies by correction, staleness and seed."""
    stored = json.loads(options.results.read_text()) if options.results.exists() else {"steps": [], "accuracy": {}}
    for seed in options.seeds:
        for staleness in options.staleness:
            for correction in options.corrections if staleness else ["none"]:
                by_seed = stored["accuracy"].setdefault(correction, {}).setdefault(str(staleness), {})
                if str(seed) in by_seed:
                    continue
                start = time.process_time()
                values = accuracies(config_of(correction, staleness, seed, steps=options.steps, lr=options.lr))
                stored["steps"], by_seed[str(seed)] = [*values], [round(value, 4) for value in values.values()]
                seconds = time.process_time() - start
                print(f"{correction:<18} {staleness:>2} {seed:>3} {[*values.values()]} {seconds:.1f} s", flush=True)
                options.results.parent.mkdir(exist_ok=True)
                options.results.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--corrections", nargs="+", choices=_CORRECTIONS, default=[*_CORRECTIONS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*range(8)])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--results", type=Path, default=_RESULTS)
    measure(parser.parse_args())
