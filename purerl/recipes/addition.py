"""Two-digit addition on the CPU of a laptop: the default recipe of `purerl train`.

A problem is ``27+58=``. The answer has the lowest digit first, ``580``, and the reward is 1 if it is correct and 0 if
not. A small Qwen3 model with random weights is first trained by SFT on demonstrations, until it solves half of its
problems (`initial_run`). The RL phase then uses only the rewards.

One problem in ten is held out, together with the same sum in the other order. Neither phase trains on these.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.config.schema import RunConfig, StopWhen
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import BETAS, COSINE, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["addition", "character_tokenizer", "prepare"]

_EXACT = "purerl.rewards.exact:exact_match"
_ANSWER_TOKENS = 4  # three digits and the end


def addition(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DAPO on two-digit addition, after a short SFT phase; 240 steps by default.

    Groups in which all completions have the same reward are dropped, and are not replaced by others. The learning rate
    rises in the first sixteenth of the optimizer steps and then falls to 0.
    """
    return tiny_task(
        name="addition",
        prepare_data="purerl.recipes.addition:prepare",
        initial_run=_demonstrations(),
        data="{run}/prepared/train.parquet",
        algorithm=dapo.Config(),
        rewards=(_EXACT,),
        steps=240,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=128,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_ANSWER_TOKENS),
        generator=generator.Config(max_num_seqs=1024),
        trainer=trainer.Config(lr=1e-3, max_grad_norm=0.3, max_tokens_per_microbatch=2048, **COSINE),
        evaluate=Evaluate(data="{run}/prepared/held_out.parquet", every=40, max_tokens=_ANSWER_TOKENS),
    )


def _demonstrations() -> dict[str, Any]:
    return dict(
        name="addition, initial run",
        data="{run}/prepared/train.parquet",
        algorithm=sft.Config(),
        max_steps=600,
        batch_size=128,
        trainer=trainer.Config(lr=1e-3, betas=BETAS, max_tokens_per_microbatch=2048),
        evaluate=Evaluate(data="{run}/prepared/train.parquet", every=10, max_examples=256, max_tokens=_ANSWER_TOKENS),
        stop_when=StopWhen(metric="eval/accuracy", at_least=0.5),
    )


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, and a model with random weights, into `folder`."""
    train, held_out = _problems(random.Random(seed))
    write_parquet(folder / "train.parquet", train)
    write_parquet(folder / "held_out.parquet", held_out)
    write_small_model(folder / "model", character_tokenizer(), seed=seed, max_length=32, initializer_range=0.06)


def _problems(rng: random.Random) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(training, held out): all sums of two numbers below 100, shuffled. A tenth of the unordered pairs is held out."""
    pairs = [(a, b) for a in range(100) for b in range(a, 100)]
    held_out = set(rng.sample(pairs, len(pairs) // 10))
    datasets: tuple[list[dict[str, str]], list[dict[str, str]]] = ([], [])
    for a in range(100):
        for b in range(100):
            answer = f"{a + b:03d}"[::-1]
            problem = {"prompt": f"{a:02d}+{b:02d}=", "completion": answer, "answer": answer}
            datasets[(min(a, b), max(a, b)) in held_out].append(problem)
    for problems in datasets:
        rng.shuffle(problems)
    return datasets


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character."""
    return word_tokenizer("0123456789+=")
