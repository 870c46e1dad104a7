"""DPO on preference pairs: the model learns to prefer chosen answers to rejected ones.

    purerl train preferences --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=pairs.parquet

The data set has columns `chosen` and `rejected`: conversations, or answers if there is a column `prompt`. Both can be
chat messages or text. The model should already answer well, for example after SFT on the chosen answers. The reference
is the model at the start. Watch `policy/margin`, which starts at 0, and `policy/accuracy`, the fraction of pairs
that the policy ranks correctly relative to the reference. `data.validation_fraction=0.05` holds out a twentieth of the
prompts, and `validation.data` names a file instead. Then `validation/loss`, `validation/accuracy` and
`validation/margin` are measured every 50 steps.

Reasons for the settings:

    beta 0.1                      the value in the paper; a larger one keeps the policy closer to the reference
    64 pairs per step             the gradient of a single pair is noisy
    learning rate 5e-7            at larger ones the probability of both answers falls
    10 % warm-up, linear to 0     the last pairs should not count more than the first
    1 epoch                       a second epoch overfits
    float32, bfloat16 autocast    all digits of the weights; bfloat16 is enough for the forward pass
    gradient checkpointing        two models of the same size are in memory: the policy and the reference
"""

from __future__ import annotations

from purerl.algos import dpo
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data, to_data
from purerl.evaluation.settings import Validation
from purerl.settings import Model
from purerl.store.settings import Checkpoint

__all__ = ["preferences"]


def preferences(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """DPO on preference pairs, one epoch by default."""
    return RunConfig(
        name="preferences",
        model=model,
        data=data,
        algorithm=dpo.Config(beta=0.1),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(
            lr=5e-7,
            warmup_ratio=0.1,
            lr_scheduler="linear",
            mixed_precision="bfloat16",
            recompute="layers",
            max_tokens_per_microbatch=16384,
        ),
        validation=Validation(every=50) if to_data(data).validation_fraction else None,
        checkpoint=Checkpoint(every=100),
    )
