"""Select completions for the report: full groups from evenly spaced steps, up to a size limit in bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from purerl.errors import DataError
from purerl.report.decoding import decode_to_numbers, load_decoder
from purerl.report.groups import Candidate, evaluation_groups, rollout_groups
from purerl.report.thumbnails import Thumbnails
from purerl.store.step_files import step_path, stored_steps

__all__ = ["NO_COMPLETIONS", "evenly_spaced", "select_completions"]

_MAX_STEPS, _MAX_EVALUATIONS = 48, 16
_EVALUATION_FRACTION = 0.25  # of the size, if there are also rollouts

NO_COMPLETIONS: dict[str, Any] = {
    "groups": [],
    "images": {},
    "num_rows": 0,
    "num_steps": 0,
    "num_stored_steps": 0,
    "num_evaluations": 0,
    "num_stored_evaluations": 0,
    "skipped": [],
}
"""The result of `select_completions` for a run without any."""


def select_completions(run: Path, *, max_bytes: int) -> dict[str, Any]:
    """Return groups of completions of a run, at most `max_bytes` long as JSON, and the number of stored steps.

    `max_bytes` is divided equally among the selected steps. Bytes that a step does not use are available to later
    steps. If no group fits, the result has as many rows of one group as fit. Completions of evaluations get up to a
    quarter of `max_bytes`, or all of it if the run has no rollouts.

    A file that cannot be read is left out. `skipped` has a message for each, and counts as part of `max_bytes`, as do
    `images`: those of the groups, by their content ids.
    """
    folders = (run / "rollouts", run / "evaluations")
    rollouts, evaluations = ([step_path(folder, step) for step in stored_steps(folder)] for folder in folders)
    evaluation_bytes = round(max_bytes * (_EVALUATION_FRACTION if rollouts else 1))
    thumbnails = Thumbnails(run)
    attempts = _fill(evaluations, evaluation_groups, _MAX_EVALUATIONS, evaluation_bytes, thumbnails)
    skipped = [*thumbnails.skipped]
    try:
        decode = load_decoder(run)
    except DataError as error:
        decode, skipped = decode_to_numbers, [str(error), *skipped]
    remaining = max_bytes - attempts.size - _json_bytes(skipped)
    sampled = _fill(rollouts, partial(rollout_groups, decode=decode), _MAX_STEPS, remaining, thumbnails)
    groups = [*sampled.groups, *attempts.groups]
    return {
        "groups": groups,
        "images": thumbnails.shown,
        "num_rows": sum(len(group["rows"]) for group in groups),
        "num_steps": len({group["step"] for group in sampled.groups}),
        "num_stored_steps": len(rollouts),
        "num_evaluations": len({group["step"] for group in attempts.groups}),
        "num_stored_evaluations": len(evaluations),
        "skipped": [*skipped, *sampled.skipped, *attempts.skipped],
    }


def evenly_spaced(values: Sequence[Any], max_count: int) -> list[Any]:
    """Select at most `max_count` of `values`, as evenly spaced as possible, including the first and the last.

    >>> evenly_spaced(range(10), 4), evenly_spaced([1, 2], 4)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(values) <= max_count:
        return list(values)
    return [values[round(k * (len(values) - 1) / (max_count - 1))] for k in range(max_count)]


class _Selection(NamedTuple):
    groups: list[dict[str, Any]]
    skipped: list[str]
    size: float


def _fill(
    files: Sequence[Path],
    read: Callable[[Path], Iterator[Candidate]],
    max_files: int,
    max_bytes: float,
    thumbnails: Thumbnails,
) -> _Selection:
    """Select groups from `files`, at most `max_bytes` long with messages and images, shown as `thumbnails`."""
    selected: list[dict[str, Any]] = []
    skipped: list[str] = []
    readable: Path | None = None
    paths, budget, image_bytes = evenly_spaced(files, max_files), 0.0, 0
    for path in paths:
        budget += max_bytes / len(paths)
        try:
            for candidate in read(path):
                readable = path
                if (group := _group_if_it_fits(candidate, budget, thumbnails)) is None:
                    break
                selected.append(group)
                size = thumbnails.size(group)
                thumbnails.show(group)
                budget -= _json_bytes(group) + size
                image_bytes += size
        except DataError as error:
            skipped.append(str(error))
            budget -= _json_bytes(skipped[-1])
    message_bytes = sum(map(_json_bytes, skipped))
    if readable is not None and not selected:
        truncated = _truncated_group(next(read(readable)), max_bytes - message_bytes)
        selected = [truncated] if truncated["rows"] else []
    return _Selection(selected, skipped, message_bytes + image_bytes + sum(map(_json_bytes, selected)))


def _group_if_it_fits(candidate: Candidate, max_bytes: float, thumbnails: Thumbnails) -> dict[str, Any] | None:
    """Return the group, or None if it is larger than `max_bytes`. A group that is far too large is not decoded."""
    if candidate.min_bytes > max_bytes:
        return None
    group = candidate.make()
    return group if _json_bytes(group) + thumbnails.size(group) <= max_bytes else None


def _truncated_group(candidate: Candidate, max_bytes: float) -> dict[str, Any]:
    """Return the group with as many of its first rows as fit in `max_bytes`, without its images."""
    group = candidate.make()
    totals = accumulate(_json_bytes(row) for row in group["rows"])
    remaining_bytes = max_bytes - _json_bytes({**group, "rows": []})
    fitting = [row for row, total in zip(group["rows"], totals, strict=True) if total <= remaining_bytes]
    return {**group, "rows": fitting}


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace"))
