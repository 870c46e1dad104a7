"""Preference pairs by DPO: a model learns to prefer what somebody chose to what they rejected.

    purerl train preferences --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=pairs.parquet

The data have columns `chosen` and `rejected`, both conversations or, beside a column `prompt`, both answers; chat
messages or texts. The model should have been trained to answer before, for example by SFT on the chosen answers.
The reference is the model that training starts from. The metrics to watch are `policy/margin`, which begins at 0, and
`policy/accuracy`, the share of pairs that the policy tells apart better than where it started.

Why it is set so:

    beta 0.1                        DPO's own; more holds the policy closer to where it started
    64 pairs a step                 a pair says little, and its noise is large
    learning rate 5e-7              the loss is easily pushed down by making both answers rarer; small steps do it less
    warm-up, then linearly to 0     over a tenth of the steps; the last pairs should not outweigh the first
    500 steps                       one epoch over 32,000 pairs; a second epoch overfits
    float32, bfloat16 autocast      updates of 5e-7 vanish in bfloat16 weights; the arithmetic does not need more
    gradient checkpointing          two models of the same size are in memory: the policy, and where it started
"""

from __future__ import annotations

from purerl.algos import dpo
from purerl.backends.hf import trainer
from purerl.config.schema import Checkpoint, Data, RunConfig
from purerl.protocols import Model

__all__ = ["preferences"]


def preferences(model: str | Model, data: str | Data, max_steps: int = 500) -> RunConfig:
    """DPO on pairs of answers."""
    return RunConfig(
        name="preferences",
        model=model,
        data=data,
        algorithm=dpo.Config(beta=0.1),
        max_steps=max_steps,
        batch_size=64,
        trainer=trainer.Config(
            lr=5e-7,
            warmup_steps=max(max_steps, 0) // 10,
            lr_scheduler="linear",
            mixed_precision="bfloat16",
            gradient_checkpointing=True,
            max_tokens_per_microbatch=16384,
        ),
        checkpoint=Checkpoint(every=100),
    )
