"""The checkpoint with the best value of a metric."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from purerl.store.settings import Checkpoint

__all__ = ["best_step"]


def best_step(records: Iterable[Mapping[str, Any]], steps: Collection[int], settings: Checkpoint) -> int | None:
    """The step, among `steps`, with the best value of the metric ``settings.best``; the first one of equal ones.

    None if no metric is set, or if none of these steps has a finite value of it.

    >>> records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.1}, {"step": 3, "loss": 0.2}]
    >>> best_step(records, {1, 3}, Checkpoint(best="loss"))
    3
    """
    sign = -1 if settings.is_smallest_best else 1
    values = {
        record["step"]: sign * record[settings.best]
        for record in records
        if record.get(settings.best) is not None and record["step"] in steps and math.isfinite(record[settings.best])
    }
    return max(values, key=lambda step: (values[step], -step), default=None)
