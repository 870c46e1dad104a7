"""A reward model on preference pairs: a language model becomes a classifier that scores completions.

    purerl train preference_classifier --set model=Qwen/Qwen2.5-0.5B-Instruct --set data=pairs.parquet

The data set has columns `chosen` and `rejected`, as for `preferences`: conversations, or answers if there is a column
`prompt`. With `algorithm.margin_coef=1.0` the column `margin` says how clearly the chosen answer is better. The output
head of the model is replaced by one that has a single score. It is a sequence classifier of transformers with one
label, and `final/` in the run directory can be loaded as such, or used as `roles.rewards.NAME.model` of another run.

Watch `policy/accuracy`, the fraction of pairs in which the chosen answer has the higher score. It starts near 0.5. A
twentieth of the prompts is held out: `validation/accuracy` on them is measured every 50 steps and at the end, and is
what counts. `validation.data` names a file instead, with `data.validation_fraction=0`.

Reasons for the settings:

    64 pairs per step             the value of Ouyang et al. 2022, who count prompts
    learning rate 9e-6            their value, for a model of 6B parameters
    cosine to a tenth             as they do; and a warm-up of 3 %, because the head is new
    1 epoch                       a second epoch overfits (Ouyang et al. 2022)
    centering_coef 0.01           scores stay near 0; the value that TRL recommends
    float32, bfloat16 autocast    all digits of the weights
    gradient checkpointing        activations of 16,384 tokens need more memory than most models
"""

from __future__ import annotations

from attrs import evolve

from purerl.algos import reward_model
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data, to_data
from purerl.evaluation.settings import Validation
from purerl.settings import Model
from purerl.store.settings import Checkpoint

__all__ = ["preference_classifier"]


def preference_classifier(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """A reward model on preference pairs, one epoch by default."""
    data = to_data(data)
    fraction = 0.05 if data.validation_fraction is None else data.validation_fraction
    return RunConfig(
        name="preference_classifier",
        model=model,
        data=evolve(data, validation_fraction=fraction),
        algorithm=reward_model.Config(centering_coef=0.01),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(
            lr=9e-6,
            warmup_ratio=0.03,
            lr_scheduler="cosine",
            min_lr_ratio=0.1,
            mixed_precision="bfloat16",
            recompute="layers",
            max_tokens_per_microbatch=16384,
        ),
        validation=Validation(every=50) if fraction else None,
        checkpoint=Checkpoint(every=100),
    )
