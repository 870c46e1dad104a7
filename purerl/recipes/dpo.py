"""DPO with every setting at its default.

    purerl train dpo --set model=MODEL --set data=pairs.jsonl

The data set has columns `chosen` and `rejected`: conversations, or answers if there is a column `prompt`. Both can be
chat messages or text.

Every value is the default of its setting; settings without a default have the value that their description shows:
`batch_size` 64. The run is one epoch. `preferences` has settings for models of 0.5 to 1.5 billion
parameters.
"""

from __future__ import annotations

from purerl.algos import dpo as algorithm
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.settings import Model

__all__ = ["dpo"]


def dpo(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """DPO on preference pairs with default settings, one epoch by default."""
    return RunConfig(
        name="dpo",
        model=model,
        data=data,
        algorithm=algorithm.Config(),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(),
    )
