"""A reward model with every setting at its default.

    purerl train reward_model --set model=MODEL --set data=pairs.jsonl

The data set has columns `chosen` and `rejected`: conversations, or answers if there is a column `prompt`. Both can be
chat messages or text.

Every value is the default of its setting; settings without a default have the value that their description shows:
`batch_size` 64. The run is one epoch. `preference_classifier` has settings for models of 0.5 to 1.5
billion parameters, and held-out pairs.
"""

from __future__ import annotations

from purerl.algos import reward_model as algorithm
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.settings import Model

__all__ = ["reward_model"]


def reward_model(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """A reward model on preference pairs with default settings, one epoch by default."""
    return RunConfig(
        name="reward_model",
        model=model,
        data=data,
        algorithm=algorithm.Config(),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(),
    )
