"""GRPO on GSM8K: an instruct model of 0.5 to 1.5 billion parameters learns to solve grade-school math problems.

    purerl data convert gsm8k SOURCE gsm8k      SOURCE: the directory of train.jsonl and test.jsonl, as published
    purerl train gsm8k --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=gsm8k/train.parquet

Any data set works if its prompts ask for a number and the correct number is in a column `answer` or `reward_model`. If
no file of problems is given as `test`, 5 % of the prompts are held out for evaluation; `data.validation_fraction` sets
another fraction, and `evaluate=` turns the evaluation off.

Reasons for the settings:

    GRPO without a reference      rewards are verified answers, so no KL penalty is needed, which saves a model
    clip_high 0.28                as in DAPO: the probability of rare tokens can rise faster, which keeps exploration
    8 completions, 64 prompts     most groups have correct and wrong completions; two updates of 256 rows per step, the
                                  first of them exactly on-policy
    512 new tokens                solutions take 100 to 300 tokens; longer completions are truncated and wrong
    learning rate 1e-6            stable for models of this size without a reference
    2 % warm-up                   the first moment estimates of AdamW are noisy
    float32, bfloat16 autocast    all digits of the weights; bfloat16 is enough for the forward pass, and for sampling
    gradient checkpointing        the logits of a vocabulary of 150,000 need much memory
    2 epochs                      about 220 steps
"""

from __future__ import annotations

from typing import Annotated

from attrs import evolve

from purerl.algos import grpo
from purerl.backends.hf import generator, trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.evaluation.settings import Evaluate
from purerl.rollouts.settings import Rollout
from purerl.settings import Model

__all__ = ["gsm8k"]

_HELD_OUT = 0.05
_TOKENS = 512


def gsm8k(
    model: str | Model,
    data: str | Data,
    test: Annotated[str | None, "a file of problems to evaluate on, instead of a fraction of the data"] = None,
    max_steps: int | None = None,
    num_epochs: float | None = None,
) -> RunConfig:
    """GRPO on grade-school math problems, two epochs by default. The reward is 1 for a correct number, else 0.

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
        num_epochs=2.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        num_minibatches=2,
        rollout=Rollout(samples_per_prompt=8, max_tokens=_TOKENS),
        generator=generator.Config(max_num_seqs=512),  # all completions of a step at once
        trainer=trainer.Config(
            lr=1e-6, warmup_ratio=0.02, mixed_precision="bfloat16", recompute="layers", max_tokens_per_microbatch=16384
        ),
        evaluate=Evaluate(data={} if test is None else test, every=10, max_tokens=_TOKENS),
    )
    if test is not None or config.data.validation_fraction is not None:
        return config
    return evolve(config, data=evolve(config.data, validation_fraction=_HELD_OUT))
