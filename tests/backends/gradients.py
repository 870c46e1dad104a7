"""The gradients of a trainer, which frees them at the end of a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def keep_gradients(trainer: Any) -> dict[str, Tensor]:
    """The gradients of the last step of `trainer` by name, after each step: the trainer itself frees them."""
    kept, optimize = dict[str, Tensor](), trainer._optimize

    def optimize_and_keep(*args: Any) -> Any:
        report = optimize(*args)
        kept.update({name: parameter.grad for name, parameter in trainer.trained.items()})
        return report

    trainer._optimize = optimize_and_keep
    return kept
