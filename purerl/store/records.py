"""Records of steps: their metrics as lines of metrics.jsonl, and their rollouts, compared with a checkpoint.

A checkpoint after step s needs the metrics of every step up to s, so that a resumed run has no gap. It does not need
the rollouts: old ones may have been deleted to save space.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from purerl.store.step_files import step_path, stored_steps
from purerl.system.files import sync

__all__ = ["find_gap", "sync_records", "to_record", "warn_of_missing_rollouts"]

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


def sync_records(directory: Path, files: Iterable[Path], folders: Sequence[Path], steps: Sequence[int]) -> None:
    """Flush `files`, which are in `directory`, and those of `steps` in `folders` to the disk, as far as they exist."""
    stored = [step_path(folder, step) for folder in folders for step in steps]
    for path in (*files, *stored, *folders, directory):
        if path.exists():
            sync(path)


def find_gap(recorded: Collection[int], step: int) -> str | None:
    """Why metrics of the steps `recorded` do not go with a checkpoint after `step`; None if they do.

    >>> find_gap([0, 1, 2, 3], 2) is None, find_gap([0, 1, 5], 4)
    (True, 'metrics.jsonl has no lines of steps 2 to 4')
    """
    missing = sorted({*range(step + 1)}.difference(recorded))
    return f"metrics.jsonl has no lines of steps {_format_steps(missing)}" if missing else None


def warn_of_missing_rollouts(records: Sequence[Mapping[str, Any]], rollouts: Path) -> None:
    """Warn if there are no `rollouts` of steps that have stored some according to their `records`."""
    stored = set(stored_steps(rollouts))
    missing = [record["step"] for record in records if "time/store" in record and record["step"] not in stored]
    if missing:
        what = "%s has no rollouts of steps %s; the run does not need them, but reports and comparisons do"
        _LOG.warning(what, rollouts, _format_steps(missing))


def _format_steps(steps: Sequence[int]) -> str:
    """Steps in ascending order, as ranges.

    >>> _format_steps([1, 2, 3, 7, 9, 10])
    '1 to 3, 7, 9 to 10'
    """
    first = [steps[0], *(after for before, after in pairwise(steps) if after != before + 1)]
    last = [*(before for before, after in pairwise(steps) if after != before + 1), steps[-1]]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True))
