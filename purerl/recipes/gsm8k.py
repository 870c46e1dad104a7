"""GSM8K by GRPO: an instruct model of 0.5 to 1.5 billion parameters learns to work out grade-school problems.

    purerl data convert gsm8k SOURCE gsm8k      SOURCE: the folder of train.jsonl and test.jsonl, as published
    purerl train gsm8k --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=gsm8k/train.parquet

Any data do whose prompts ask for a number and whose examples have it, in a column `answer` or `reward_model`. Without a
file of problems to `test` on, a twentieth of the prompts is held out, and never trained on.

Why it is set so:

    GRPO, without a reference       a checked answer cannot be flattered, so nothing has to hold the policy back, and a
                                    third model is saved
    clip_high 0.28                  DAPO's: rare tokens may become likelier faster, which keeps the policy exploring
    8 completions of 64 prompts     large enough that most groups have right and wrong ones; two updates of 256 rows,
                                    the first of them exactly on policy
    512 new tokens                  solutions take 100 to 300; longer ones are cut off, and wrong
    learning rate 1e-6              what models of this size bear without a reference; ten steps of the optimizer to
                                    get there (half of a shorter run), while its moments are still noise
    float32, bfloat16 autocast      updates of 1e-6 vanish in bfloat16 weights; the arithmetic does not need more
    gradient checkpointing          a vocabulary of 150,000 leaves little room beside it
    230 steps                       two passes over the 7,100 problems that are left to train on
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.config.schema import Data, Evaluate, Rollout, RunConfig
from purerl.protocols import Model

__all__ = ["gsm8k"]

_HELD_OUT = 0.05
_TOKENS = 512


def gsm8k(
    model: str | Model,
    data: str | Data,
    test: Annotated[str | None, "a file of problems to evaluate on, in place of a share of the data"] = None,
    max_steps: int = 230,
) -> RunConfig:
    """GRPO on grade-school problems: the number that a completion comes to is right, or not.

    >>> gsm8k(model="Qwen/Qwen2.5-0.5B-Instruct", data="gsm8k/train.parquet").data.validation_fraction
    0.05
    """
    config = RunConfig(
        name="gsm8k",
        model=model,
        data=data,
        algorithm=grpo.Config(clip_high=0.28),
        rewards=("purerl.rewards.math:gsm8k",),
        max_steps=max_steps,
        batch_size=64,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_TOKENS),
        generator=generator.Config(max_num_seqs=512),  # all of a step at once
        trainer=trainer.Config(
            lr=1e-6,
            warmup_steps=max(0, min(10, max_steps)),
            mixed_precision="bfloat16",
            gradient_checkpointing=True,
            max_tokens_per_microbatch=16384,
        ),
        evaluate=Evaluate(data=test or {}, every=10, max_tokens=_TOKENS),
    )
    if test is not None or config.data.validation_fraction:
        return config
    return evolve(config, data=evolve(config.data, validation_fraction=_HELD_OUT))
