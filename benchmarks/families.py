"""Does every family of algorithms learn, in the loop, on the task of the default recipe?

    python benchmarks/families.py                           all families, seeds 0 and 1
    python benchmarks/families.py ppo opd --seeds 0 1 2     some of them

For each family and seed: held-out accuracy before and after, and the first evaluation that was at least 0.9: its step,
and the CPU seconds that it took to get there. A family is the default recipe with another algorithm, and with what that
algorithm needs; all families of a seed go on from the same supervised start. What is finished is not done again: the
runs stay in `--directory`, and one that was interrupted goes on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

import purerl
from purerl.algos import gspo, kl_cov, opd, pf_ppo, ppo, prime, reinforce_plus_plus, remax, sppo
from purerl.config.schema import RunConfig, StopWhen
from purerl.protocols import Model
from purerl.recipes.addition import addition
from purerl.rewards.exact import exact_match
from purerl.store.directory import claim

_GOAL = 0.9


def signed(completion: str, example: Mapping[str, Any]) -> float:
    """1 for the right answer, -1 for any other."""
    return 2 * exact_match(completion, example) - 1


def families(base: RunConfig, teacher: Path) -> dict[str, RunConfig]:
    """`base` with each algorithm, and with what it needs."""
    change, trainer = partial(evolve, base), partial(evolve, base.trainer)
    return {
        # The recipe itself, to its end: its model is OPD's teacher.
        "dapo": change(stop_when=None),
        "ppo": change(algorithm=ppo.Config()),
        # Nothing is clipped, and the greedy answer is right three times as often as a sampled one, so that as a
        # baseline it adds noise: whole batches, smaller steps, and a learning rate that falls four times as slowly.
        "remax": change(
            algorithm=remax.Config(),
            num_minibatches=1,
            trainer=trainer(lr=4e-4, warmup_steps=15),
            max_steps=4 * base.max_steps,
        ),
        # Nothing is clipped: smaller steps.
        "kl_cov": change(algorithm=kl_cov.Config(), trainer=trainer(lr=3e-4)),
        "gspo": change(algorithm=gspo.Config()),
        "reinforce_plus_plus": change(algorithm=reinforce_plus_plus.Config()),
        # Implicit rewards move the policy on every prompt, outcomes on few: smaller weights, smaller steps.
        "prime": change(algorithm=prime.Config(process_coef=0.5), trainer=trainer(lr=5e-4)),
        # A row with a score of 0 would never be drawn.
        "pf_ppo": change(algorithm=pf_ppo.Config(), rewards=("families:signed",), trainer=trainer(lr=5e-4)),
        # A goal that one update can reach; the default is the paper's, hundreds of nats, and far beyond any. Nothing is
        # clipped: smaller steps, and a learning rate that falls half as fast.
        "sppo": change(algorithm=sppo.Config(eta=2.0), trainer=trainer(lr=3e-4), max_steps=2 * base.max_steps),
        "opd": change(algorithm=opd.Config(), teacher=Model(str(teacher))),
    }


def run(config: RunConfig, directory: Path) -> list[dict[str, Any]]:
    """The lines of the metrics of `config`'s run in `directory`, which is done first unless it is finished."""
    place = claim(directory, config, fresh=False)
    finished = place.summary is not None
    place.release()
    if not finished:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            purerl.train(config, directory=directory)
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def configs(root: Path, seed: int) -> dict[str, RunConfig]:
    """Each family's run with `seed`, after the supervised start that all of them share."""
    recipe = evolve(addition(), seed=seed)
    start = root / f"start-{seed}"
    run(evolve(recipe.initial_run, prepare_data=recipe.prepare_data, seed=seed), start)
    base = evolve(
        recipe,
        initial_run=None,
        prepare_data=None,
        model=Model(str(start / "final")),
        data=str(start / "prepared" / "train.parquet"),
        evaluate=evolve(recipe.evaluate, data=str(start / "prepared" / "held_out.parquet"), every=10),
        stop_when=StopWhen(metric="eval/accuracy", at_least=_GOAL),
    )
    return families(base, root / f"dapo-{seed}" / "final")


def row(family: str, seed: int, lines: list[dict[str, Any]]) -> str:
    """What a run came to."""
    accuracy = {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
    goal = next((step for step, value in accuracy.items() if value >= _GOAL), None)
    seconds = sum(line.get("time/cpu", 0.0) for line in lines if goal is None or line["step"] <= goal)
    last = lines[-1]["step"]
    steps = str(goal) if goal is not None else f"not in {last}"
    return f"{family:<24} {seed:>4} {accuracy[0]:>7.3f} {accuracy[last]:>6.3f} {steps:>12} {seconds:>6.1f}"


def main(names: list[str], seeds: list[int], root: Path) -> None:
    """Print a row for each of `names`, or of all, and each of `seeds`."""
    print(f"{'family':<24} {'seed':>4} {'before':>7} {'after':>6} {'steps to 0.9':>12} {'CPU s':>6}", flush=True)
    for seed in seeds:
        found = configs(root, seed)
        for name in names or found:
            if name == "opd":
                run(found["dapo"], root / f"dapo-{seed}")  # its teacher
            print(row(name, seed, run(found[name], root / f"{name}-{seed}")), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="all of them if none is named")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--directory", type=Path, default=Path("runs/families"), help="where the runs are kept")
    asked = parser.parse_args()
    main(asked.families, asked.seeds, asked.directory)
