"""The record of a step: its metrics, as they are written to metrics.jsonl."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from purerl.config.schema import StopWhen

__all__ = ["is_reached", "to_record"]

_LOG = logging.getLogger(__name__)


def to_record(metrics: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`metrics` with None for NaN and infinity, which JSON does not have.

    There is a warning for the first such value of each metric of the run at `path`.
    """
    invalid = {name: value for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)}
    for name, value in invalid.items():
        _warn(path, name, str(value))
    return {**metrics, **dict.fromkeys(invalid)}


@lru_cache
def _warn(path: Path, name: str, value: str) -> None:
    _LOG.warning("the metric %s is %s; such values are null in %s", name, value, path / "metrics.jsonl")


def is_reached(stop_when: StopWhen | None, record: Mapping[str, Any]) -> bool:
    """Whether the metric of `stop_when` is high enough in `record`. A metric without a value is not."""
    value = record.get(stop_when.metric) if stop_when else None
    return value is not None and value >= stop_when.at_least
