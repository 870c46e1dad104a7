"""A task that needs a tool, on the CPU of a laptop: the product of two numbers, with a calculator.

    47*86=<calc>47*86</calc><eos>4042=4042<eos>

The numbers are from 32 to 99, so that every product has four digits. In the first turn the model can call the tool,
whose result follows, and it answers in the second turn; or it answers at once. The reward is 1 if the answer is correct
and 0 if not. The model is too small to multiply, so only episodes with a call are rewarded. Nothing rewards a call.

A small Qwen3 model with random weights is first trained by SFT on demonstrations, until it solves a tenth of its
problems (`initial_run`). Three quarters of the demonstrations answer at once, and one quarter calls the tool. The RL
phase then uses only the rewards: the model learns to call the tool, to write the call without mistakes, and to copy
the result.

One problem in ten is held out. Neither phase trains on these.
"""

from __future__ import annotations

import random
from pathlib import Path

from purerl.algos import dapo, sft
from purerl.backends.hf import generator, trainer
from purerl.backends.hf.tiny_models import word_tokenizer, write_small_model
from purerl.config.schema import RunConfig, StopWhen
from purerl.envs.settings import EnvironmentSettings
from purerl.evaluation.settings import Evaluate
from purerl.recipes.tiny_task import BETAS, COSINE, tiny_task, write_parquet
from purerl.rollouts.settings import Rollout

__all__ = ["calc", "calculator", "prepare"]

_EXACT = "purerl.rewards.exact:exact_match"
_FACTORS = range(32, 100)
_TURN_TOKENS = 8  # of a call: two tags, five characters, and the end
_TOOL = EnvironmentSettings(tools=("purerl.recipes.calculator:calc",), max_turns=2, run_in="event_loop")


async def calc(expression: str) -> str:
    """Multiply two numbers.

    Args:
        expression: such as 12*34
    """
    factors = expression.split("*")
    if len(factors) != 2 or not all(factor.isdecimal() and len(factor) < 4 for factor in factors):
        return "?="
    return f"{int(factors[0]) * int(factors[1])}="


def calculator(max_steps: int | None = None, num_epochs: float | None = None) -> RunConfig:
    """DAPO on products of two numbers with a tool, after a short SFT phase; 40 steps by default."""
    return tiny_task(
        name="calculator",
        prepare_data="purerl.recipes.calculator:prepare",
        initial_run=dict(
            name="calculator, initial run",
            data="{run}/prepared/demonstrations.parquet",
            algorithm=sft.Config(),
            max_steps=600,
            batch_size=128,
            trainer=trainer.Config(lr=2e-3, betas=BETAS, max_tokens_per_microbatch=4096),
            evaluate=_evaluation("{run}/prepared/train.parquet", every=10),
            stop_when=StopWhen(metric="eval/accuracy", at_least=0.1),
        ),
        data="{run}/prepared/train.parquet",
        environment=_TOOL,
        algorithm=dapo.Config(),
        rewards=(_EXACT,),
        steps=40,
        max_steps=max_steps,
        num_epochs=num_epochs,
        batch_size=32,
        num_minibatches=4,
        rollout=Rollout(samples_per_prompt=16, max_tokens=_TURN_TOKENS),
        generator=generator.Config(max_num_seqs=512),
        trainer=trainer.Config(lr=1e-3, max_grad_norm=0.3, max_tokens_per_microbatch=4096, **COSINE),
        evaluate=_evaluation("{run}/prepared/held_out.parquet", every=10),
    )


def _evaluation(data: str, every: int) -> Evaluate:
    """An answer to each of 256 problems, sampled as in training: greedy decoding would hide how often it calls."""
    return Evaluate(data=data, every=every, max_examples=256, max_tokens=_TURN_TOKENS, temperature=1.0)


def prepare(folder: Path, seed: int) -> None:
    """Write the problems, the demonstrations, and a model with random weights, into `folder`."""
    rng = random.Random(seed)
    problems = [(f"{a}*{b}", str(a * b)) for a in _FACTORS for b in _FACTORS]
    rng.shuffle(problems)
    held_out, train = problems[: len(problems) // 10], problems[len(problems) // 10 :]
    for name, part in (("train", train), ("held_out", held_out)):
        rows = [{"prompt": f"{expression}=", "answer": answer} for expression, answer in part]
        write_parquet(folder / f"{name}.parquet", rows)
    demonstrations = [turn for k, problem in enumerate(train) for turn in _turns(*problem, with_call=k % 4 == 0)]
    rng.shuffle(demonstrations)
    write_parquet(folder / "demonstrations.parquet", demonstrations)
    tokenizer = word_tokenizer([*"0123456789*=?", "<calc>", "</calc>"], pattern="</?calc>|.")
    write_small_model(folder / "model", tokenizer, seed=seed, max_length=64)


def _turns(expression: str, answer: str, *, with_call: bool) -> list[dict[str, str]]:
    """The turns of a demonstration, each with the conversation before it."""
    prompt, call = f"{expression}=", f"<calc>{expression}</calc>"
    if not with_call:
        return [{"prompt": prompt, "completion": answer}]
    return [{"prompt": prompt, "completion": call}, {"prompt": f"{prompt}{call}<eos>{answer}=", "completion": answer}]
