"""A programming task on the CPU of a laptop: one line of Python for an expression in postfix notation.

A prompt, with a correct completion::

    def f(a, b):
        # a 3 + b *
        return (a+3)*b<eos>

The operands are a, b and digits, and there are two operators. The reward is 1 if the function passes its tests and 0 if
not. The tests call it in a sandbox, because many programs are correct: ``b*(a+3)`` is another one.

A small Qwen3 model with random weights is first trained by SFT on demonstrations, until it solves a fifth of its
problems (`initial_run`). Three quarters of the demonstrations have no parentheses, also where they are needed. The RL
phase then uses only the tests: the model learns where parentheses belong, and to copy operands without mistakes.

One problem in ten is held out. Neither phase trains on these.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.config.schema import RunConfig, StopWhen
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import BETAS, COSINE, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout

__all__ = ["Problem", "code", "prepare", "problems"]

_TESTS = "purerl.rewards.code:function_tests"
_OPERANDS, _OPERATORS = "ab23456789", "+-*"
_ARGUMENTS = ((2, 7), (-3, 5), (11, -4))
_START, _RETURN = "def f(a, b):\n    # ", "\n    return "
_ANSWER_TOKENS = 8  # three operands, two operators, two parentheses, and the end


class Problem(NamedTuple):
    """An expression: in postfix notation, in Python, and in Python without parentheses."""

    postfix: str
    infix: str
    plain: str


def problems() -> Iterator[Problem]:
    """The expressions of three operands and two operators that need parentheses."""
    for x, y, z in product(_OPERANDS, repeat=3):
        for first, second in product(_OPERATORS, repeat=2):
            plain = f"{x}{first}{y}{second}{z}"
            left = Problem(f"{x}{y}{first}{z}{second}", f"({x}{first}{y}){second}{z}", plain)
            right = Problem(f"{x}{y}{z}{second}{first}", f"{x}{first}({y}{second}{z})", plain)
            yield from (problem for problem in (left, right) if values(problem.infix) != values(plain))


def values(expression: str) -> list[int]:
    """The values of an expression for some values of a and b."""
    code = compile(expression, "<expression>", "eval")
    return [eval(code, {"a": a, "b": b}) for a, b in _ARGUMENTS]  # noqa: S307 -- our own text


def code(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DAPO on one-line programs, after a short SFT phase; 40 steps by default."""
    return tiny_task(
        name="code",
        prepare_data="purerl.recipes.code:prepare",
        initial_run=dict(
            name="code, initial run",
            data="{run}/prepared/demonstrations.parquet",
            algorithm=sft.Config(),
            max_steps=600,
            batch_size=128,
            trainer=trainer.Config(lr=2e-3, betas=BETAS, max_tokens_per_microbatch=4096),
            evaluate=_evaluation("{run}/prepared/train.parquet", every=20),
            stop_when=StopWhen(metric="eval/accuracy", at_least=0.2),
        ),
        data="{run}/prepared/train.parquet",
        algorithm=dapo.Config(),
        rewards=(_TESTS,),
        steps=40,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=16,
        num_minibatches=4,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_ANSWER_TOKENS),
        generator=generator.Config(max_num_seqs=128),
        trainer=trainer.Config(lr=1e-3, max_grad_norm=0.3, max_tokens_per_microbatch=4096, **COSINE),
        evaluate=_evaluation("{run}/prepared/held_out.parquet", every=10),
    )


def _evaluation(data: str, every: int) -> Evaluate:
    """An answer to each of 128 problems, sampled as in training."""
    return Evaluate(data=data, every=every, max_examples=128, max_tokens=_ANSWER_TOKENS, temperature=1.0)


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, the demonstrations, and a model with random weights, into `folder`."""
    rng = random.Random(seed)
    every = list(problems())
    rng.shuffle(every)
    held_out, train = every[: len(every) // 10], every[len(every) // 10 :]
    for name, part in (("train", train), ("held_out", held_out)):
        write_parquet(folder / f"{name}.parquet", [_example(problem) for problem in part])
    demonstrations = [
        {"prompt": _prompt(problem), "completion": problem.plain if k % 4 else problem.infix}
        for k, problem in enumerate(train)
    ]
    write_parquet(folder / "demonstrations.parquet", demonstrations)
    tokenizer = word_tokenizer(
        [_START, _RETURN, *_OPERANDS, *_OPERATORS, "(", ")"], r"def f\(a, b\):\n    # |\n    return |."
    )
    write_small_model(folder / "model", tokenizer, seed=seed, max_length=32)


def _prompt(problem: Problem) -> str:
    return f"{_START}{problem.postfix}{_RETURN}"


def _example(problem: Problem) -> dict[str, str]:
    """A problem with the columns of HumanEval."""
    results = zip(_ARGUMENTS, values(problem.infix), strict=True)
    test = "def check(f):\n" + "".join(f"    assert f({a}, {b}) == {value}\n" for (a, b), value in results)
    return {"prompt": _prompt(problem), "test": test, "entry_point": "f"}
