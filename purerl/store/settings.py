"""Settings of the section `checkpoint`."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from purerl.settings import at_least, boolean, no_effect, one_of, setting

__all__ = ["Checkpoint"]


@frozen(kw_only=True)
class Checkpoint:
    """Intervals and retention of checkpoints; there is always one at the end."""

    every: int = setting("steps between checkpoints", default=20, may_change=True, **at_least(1))
    keep: int = setting("number of newest checkpoints that stay on disk", default=2, may_change=True, **at_least(1))
    best: str | None = setting(
        "name of a metric, such as eval/accuracy: the checkpoint with its best value stays on disk too; an evaluation "
        "with a new best value is followed by a checkpoint",
        default=None,
        may_change=True,
    )
    best_mode: Literal["max", "min"] = setting(
        "whether the largest or the smallest value of the metric is the best",
        default="max",
        may_change=True,
        **one_of("max", "min"),
    )

    background: bool = setting(
        "write checkpoints while training continues; what is written is first copied into the memory of the host",
        default=False,
        may_change=True,
        **boolean(),
    )

    def __attrs_post_init__(self) -> None:
        if self.best is None and self.best_mode != "max":
            raise no_effect("best_mode", self.best_mode, "a metric", "set checkpoint.best, or leave best_mode out")
