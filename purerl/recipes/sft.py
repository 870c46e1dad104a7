"""SFT with every setting at its default.

    purerl train sft --set model=MODEL --set data=demonstrations.jsonl

The data set has a column `messages` with conversations, columns `prompt` and `completion`, or a column `text`.

Every value is the default of its setting; settings without a default have the value that their description shows:
`batch_size` 64. The run is one epoch. `chat` has settings for conversations.
"""

from __future__ import annotations

from purerl.algos import sft as algorithm
from purerl.backends.hf import trainer
from purerl.config.schema import RunConfig
from purerl.data.settings import Data
from purerl.settings import Model

__all__ = ["sft"]


def sft(
    model: str | Model, data: str | Data, max_steps: int | None = None, num_epochs: float | None = None
) -> RunConfig:
    """SFT on demonstrations with default settings, one epoch by default."""
    return RunConfig(
        name="sft",
        model=model,
        data=data,
        algorithm=algorithm.Config(),
        max_steps=max_steps,
        num_epochs=1.0 if max_steps is None and num_epochs is None else num_epochs,
        batch_size=64,
        trainer=trainer.Config(),
    )
