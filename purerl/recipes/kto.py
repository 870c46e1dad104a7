"""KTO with every setting at its default.

    purerl train kto --set model=MODEL --set data=labeled.jsonl

The data set has columns `prompt` and `completion`, and a column `label`: true if the completion is desirable.

Every value is the default of its setting; settings without a default have the value that their description shows:
`batch_size` 64. The run is one epoch. docs/tutorials/kto.md says which settings matter.
"""

from __future__ import annotations

from purerl.algos import kto as algorithm
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.settings import Model

__all__ = ["kto"]


def kto(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """KTO on labeled completions with default settings, one epoch by default."""
    return RunConfig(
        name="kto",
        model=model,
        data=data,
        algorithm=algorithm.Config(),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(),
    )
