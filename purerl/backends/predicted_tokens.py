"""The tokens whose log-probabilities a trainer computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from purerl.types import TensorDict

__all__ = ["predicted_tokens"]


def predicted_tokens(batch: TensorDict) -> Tensor:
    """The tokens that a trainer predicts, bool [rows, time]: action tokens, and those of `observed`, if there are any.

    `observed` is written by the preparation of an objective that learns the answers of an environment.
    """
    return batch["action"] | batch["observed"] if "observed" in batch.keys() else batch["action"]
