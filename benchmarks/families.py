"""Training results of thirteen families of algorithms on the task of the default recipe.

    python benchmarks/families.py                           all families, seeds 0 and 1
    python benchmarks/families.py ppo opd --seeds 0 1 2     some of them

For each family and seed the table has the held-out accuracy before and after, the step of the first evaluation with an
accuracy of at least 0.9, and the CPU seconds until then. A family has the task and the model of the default recipe,
64 prompts with 16 completions per step, another algorithm, and the settings that this algorithm needs. All families of
a seed start from the same model, which SFT has trained. The runs are stored in `--directory`. Finished runs are not
repeated, and interrupted runs are resumed.
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
from purerl.algos import flowrl, gspo, kl_cov, opd, opd_top_k, otb, pf_ppo, ppo, prime, reinforce_plus_plus, remax, sppo
from purerl.config.schema import Role, RunConfig, StopWhen
from purerl.loop.train import claim_directory
from purerl.recipes.addition import addition
from purerl.rewards.exact import exact_match
from purerl.settings import Model

_GOAL = 0.9


def signed(completion: str, example: Mapping[str, Any]) -> float:
    """1 for the correct answer, -1 for any other."""
    return 2 * exact_match(completion, example) - 1


def families(base: RunConfig, teacher: Path) -> dict[str, RunConfig]:
    """`base` with each algorithm, and with the settings that it needs. `teacher` is the model for distillation."""
    change, trainer = partial(evolve, base), partial(evolve, base.trainer)
    return {
        # The algorithm of the recipe, without an early stop: its model is the teacher for distillation.
        "dapo": change(stop_when=None),
        "ppo": change(algorithm=ppo.Config()),
        # ReMax does not clip. Greedy answers are correct three times as often as sampled ones, so as a baseline they
        # increase the variance. It has larger mini-batches, a lower learning rate, and a decay over four times as many
        # steps.
        "remax": change(
            algorithm=remax.Config(),
            num_minibatches=1,
            trainer=trainer(lr=4e-4),
            max_steps=4 * base.max_steps,
        ),
        # KL-Cov does not clip, and has a lower learning rate.
        "kl_cov": change(algorithm=kl_cov.Config(), trainer=trainer(lr=3e-4)),
        "gspo": change(algorithm=gspo.Config()),
        "reinforce_plus_plus": change(algorithm=reinforce_plus_plus.Config()),
        # Implicit rewards change the policy on every prompt, outcome rewards on few prompts. They have a smaller
        # coefficient, and the learning rate is lower.
        "prime": change(algorithm=prime.Config(process_coef=0.5), trainer=trainer(lr=5e-4)),
        # A row with a score of 0 would never be drawn, so incorrect answers have the score -1.
        "pf_ppo": change(algorithm=pf_ppo.Config(), rewards=("families:signed",), trainer=trainer(lr=5e-4)),
        # The target must be within reach of one update. With the default `eta`, the paper's, it is hundreds of nats
        # away. SPPO does not clip: it has a lower learning rate, and a decay over twice as many steps.
        "sppo": change(
            algorithm=sppo.Config(eta=2.0),
            trainer=trainer(lr=3e-4),
            max_steps=2 * base.max_steps,
        ),
        # OTB has no importance ratio: it needs one optimizer step per batch.
        "otb": change(
            algorithm=otb.Config(),
            num_minibatches=1,
            trainer=trainer(lr=8e-4),
            max_steps=2 * base.max_steps,
        ),
        # The target of a completion is beta * advantage nats away from the reference. With the default, the paper's for
        # long completions, it is out of reach for completions of four tokens.
        "flowrl": change(algorithm=flowrl.Config(beta=2.0), trainer=trainer(lr=5e-4)),
        "opd": change(algorithm=opd.Config(), roles={"teacher": Role(model=Model(str(teacher)))}),
        # The reverse KL gives no signal about tokens outside of the teacher's four: it is replaced by the forward KL.
        "opd_top_k": change(
            algorithm=opd_top_k.Config(reverse_coef=0.0, forward_coef=1.0),
            roles={"teacher": Role(model=Model(str(teacher)), trainer=trainer(top_k=4))},
        ),
    }


def run(config: RunConfig, directory: Path) -> list[dict[str, Any]]:
    """Do the run in `directory` unless it is finished, and return the records of its metrics."""
    claimed = claim_directory(directory, config)
    is_finished = claimed.summary is not None
    claimed.release()
    if not is_finished:
        with Path(os.devnull).open("w") as null, redirect_stdout(null):
            purerl.train(config, directory=directory)
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def configs(root: Path, seed: int) -> dict[str, RunConfig]:
    """The run of each family with `seed`. It starts from the model of the SFT run, which is done first."""
    recipe = addition(max_steps=240)
    rollout = evolve(recipe.rollout, samples_per_prompt=16)
    recipe = evolve(recipe, seed=seed, batch_size=64, num_minibatches=4, rollout=rollout)
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


def format_row(family: str, seed: int, records: list[dict[str, Any]]) -> str:
    """The row of a run in the table."""
    accuracy = {record["step"]: record["eval/accuracy"] for record in records if "eval/accuracy" in record}
    goal = next((step for step, value in accuracy.items() if value >= _GOAL), None)
    seconds = sum(record.get("time/cpu", 0.0) for record in records if goal is None or record["step"] <= goal)
    last = records[-1]["step"]
    steps = str(goal) if goal is not None else f"not in {last}"
    return f"{family:<24} {seed:>4} {accuracy[0]:>7.3f} {accuracy[last]:>6.3f} {steps:>12} {seconds:>6.1f}"


def main(names: list[str], seeds: list[int], root: Path) -> None:
    """Print a row for each of `names` and `seeds`. No `names` are all families."""
    print(f"{'family':<24} {'seed':>4} {'before':>7} {'after':>6} {'steps to 0.9':>12} {'CPU s':>6}", flush=True)
    for seed in seeds:
        by_family = configs(root, seed)
        for name in names or by_family:
            if name in ("opd", "opd_top_k"):
                run(by_family["dapo"], root / f"dapo-{seed}")  # its teacher
            print(format_row(name, seed, run(by_family[name], root / f"{name}-{seed}")), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="all of them if none is named")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--directory", type=Path, default=Path("runs/families"), help="where the runs are stored")
    options = parser.parse_args()
    main(options.families, options.seeds, options.directory)
