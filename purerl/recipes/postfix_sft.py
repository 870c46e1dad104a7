"""Supervised fine-tuning on the CPU of a laptop: an expression in postfix notation becomes one in Python's notation.

    a3+b*=(a+3)*b<eos>

The operands are a, b and digits, and there are two operators. All expressions need parentheses. The demonstrations are
correct, and the loss is on their answers. One problem in ten is held out, and never trained on.

This module also makes the data of `postfix_dpo`, `postfix_kto`, `postfix_reward_model`, `postfix_rl`,
`postfix_distillation` and `postfix_ppo`. These recipes start from a model that has learned from other demonstrations
(`demonstrations.parquet`): three quarters of them leave the parentheses out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from purerl.algos import sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.config.schema import RunConfig
from purerl.evaluation.settings import Evaluate
from purerl.recipes.code import Problem, problems
from purerl.recipes.tiny_task import COSINE, max_steps_of, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout
from purerl.settings import Model
from purerl.store.settings import Checkpoint

__all__ = ["ROLLOUT", "evaluation", "from_demonstrations", "postfix_sft", "prepare", "training"]

_EXACT = "purerl.rewards.exact:exact_match"
_CHARACTERS = "ab23456789+-*()"
ROLLOUT = Rollout(samples_per_prompt=8, max_tokens=8)
"""Sampling of answers, which have three operands, two operators, two parentheses, and the end."""


def postfix_sft(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """SFT on correct demonstrations; 160 steps by default."""
    return RunConfig(
        name="postfix_sft",
        prepare_data="purerl.recipes.postfix_sft:prepare",
        model=Model("{run}/prepared/model"),
        data="{run}/prepared/train.parquet",
        algorithm=sft.Config(),
        max_steps=max_steps_of(160, max_steps, num_epochs),
        num_epochs=num_epochs,
        batch_size=128,
        trainer=training(lr=3e-3),
        **_sampled(every=20),
    )


def from_demonstrations(**settings: Any) -> RunConfig:
    """A run with `settings` that starts from a model that often leaves out the parentheses.

    This model has learned from `demonstrations.parquet` (`initial_run`). The answers of the policy to held-out problems
    are evaluated every ten steps.
    """
    initial_run = {
        "name": "postfix, initial run",
        "data": "{run}/prepared/demonstrations.parquet",
        "algorithm": sft.Config(),
        "max_steps": 120,
        "batch_size": 128,
        "trainer": training(lr=2e-3),
        "checkpoint": Checkpoint(every=120, keep=1),
    }
    return tiny_task(
        prepare_data="purerl.recipes.postfix_sft:prepare", initial_run=initial_run, **{**_sampled(every=10), **settings}
    )


def training(lr: float, **settings: Any) -> trainer.Config:
    """A trainer whose learning rate rises to `lr` in the first sixteenth of the steps, and then falls to 0."""
    return trainer.Config(lr=lr, max_tokens_per_microbatch=4096, **COSINE, **settings)


def evaluation(every: int) -> Evaluate:
    """An answer to each of 256 held-out problems, sampled as in training."""
    data = "{run}/prepared/held_out.parquet"
    return Evaluate(data=data, every=every, max_examples=256, max_tokens=ROLLOUT.max_tokens, temperature=1.0)


def _sampled(every: int) -> dict[str, Any]:
    """The settings of a run whose policy is evaluated by its answers: correct is what equals the answer of the data."""
    return {
        "rewards": (_EXACT,),
        "generator": generator.Config(max_num_seqs=256),
        "evaluate": evaluation(every),
        "checkpoint": Checkpoint(every=50),
        "num_threads": 1,
    }


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, demonstrations, pairs of answers, labeled answers, and a model with random weights."""
    rng = random.Random(seed)
    every = list(problems())
    rng.shuffle(every)
    held_out, train = every[: len(every) // 10], every[len(every) // 10 :]
    for name, part in (("train", train), ("held_out", held_out)):
        write_parquet(folder / f"{name}.parquet", [_demonstration(problem, problem.infix) for problem in part])
    pairs = _pairs(train, rng)
    write_parquet(folder / "pairs.parquet", pairs)
    write_parquet(folder / "held_out_pairs.parquet", _pairs(held_out, rng))
    labeled = [
        {"prompt": pair["prompt"], "completion": pair["rejected" if k % 2 else "chosen"], "label": k % 2 == 0}
        for k, pair in enumerate(pairs)
    ]
    write_parquet(folder / "labeled.parquet", labeled)
    plain = [_demonstration(problem, problem.plain if k % 4 else problem.infix) for k, problem in enumerate(train)]
    write_parquet(folder / "demonstrations.parquet", plain)
    write_small_model(folder / "model", word_tokenizer(f"{_CHARACTERS}="), seed=seed, max_length=32)


def _prompt(problem: Problem) -> str:
    return f"{problem.postfix}="


def _demonstration(problem: Problem, completion: str) -> dict[str, str]:
    return {"prompt": _prompt(problem), "completion": completion, "answer": problem.infix}


def _pairs(part: Sequence[Problem], rng: random.Random) -> list[dict[str, str]]:
    """The correct answer, and an incorrect one: half of them without parentheses, half with another mistake."""
    rejected = [problem.plain if rng.random() < 0.5 else _with_mistake(problem.infix, rng) for problem in part]
    return [
        {"prompt": _prompt(problem), "chosen": problem.infix, "rejected": answer}
        for problem, answer in zip(part, rejected, strict=True)
    ]


def _with_mistake(answer: str, rng: random.Random) -> str:
    """`answer` with one character replaced, left out, or written twice."""
    k = rng.randrange(len(answer))
    other = rng.choice(_CHARACTERS.replace(answer[k], ""))
    return answer[:k] + rng.choice([other, "", 2 * answer[k]]) + answer[k + 1 :]
