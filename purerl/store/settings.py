"""Settings of the section `checkpoint`."""

from __future__ import annotations

import re
from typing import Literal

from attrs import frozen

from purerl.settings import at_least, boolean, no_effect, one_of, setting

__all__ = ["Checkpoint"]

_SMALL_IS_GOOD = {"loss", "nll", "perplexity"}


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
    best_mode: Literal["max", "min"] | None = setting(
        "whether the largest or the smallest value of the metric is the best; if not given, min for a loss or a "
        "perplexity, and max for any other metric",
        default=None,
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
        if self.best is None and self.best_mode is not None:
            raise no_effect("best_mode", self.best_mode, "a metric", "set checkpoint.best, or leave best_mode out")

    @property
    def is_smallest_best(self) -> bool:
        """Whether the smallest value of the metric is the best.

        >>> Checkpoint(best="validation/loss").is_smallest_best, Checkpoint(best="eval/accuracy").is_smallest_best
        (True, False)
        """
        if self.best_mode is not None:
            return self.best_mode == "min"
        return not _SMALL_IS_GOOD.isdisjoint(re.split("[/_]", self.best or ""))
