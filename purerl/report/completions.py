"""Some of a run's completions: whole groups, from steps all along the run, as many as fit into a number of bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.errors import DataError
from purerl.report.numbers import short
from purerl.report.pieces import Decode, decoder, pieces
from purerl.store.rollouts import TOKEN_FIELDS, read_table, stored_steps

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["completions", "evenly"]

_STEPS = 48
_BYTES_OF_A_TOKEN = 8  # at least: an id and its text
_GROUP_FIELDS = ("step", "group", "example", "prompt")
_ROW_FIELDS = ("row", "completion", "finish", "truncated", "temperature")


def completions(run: Path, *, size: int) -> dict[str, Any]:
    """Groups of the run at `run` whose JSON has at most `size` bytes, and how much there is in all.

    Every step has the same share of `size`, and what it leaves is for the steps that follow. Where no group fits,
    there are as many rows of one as do.

    Raises: DataError for a file that is no Parquet file, or not a whole one.
    """
    folder, decode = run / "rollouts", decoder(run)
    stored = stored_steps(folder)
    steps = evenly(stored, _STEPS)
    found: list[dict[str, Any]] = []
    allowed = 0.0
    for step in steps:
        allowed += size / len(steps)
        for rows in _groups(_table(folder, step)):
            if (group := _fitting(rows, allowed, decode)) is None:
                break
            found.append(group)
            allowed -= _bytes(group)
    if steps and not found:
        found = [_part(rows, size, decode) for rows in islice(_groups(_table(folder, steps[-1])), 1)]
    rows = sum(len(group["rows"]) for group in found)
    return {"groups": found, "rows": rows, "steps": len({group["step"] for group in found}), "stored": len(stored)}


def evenly(values: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of `values`, as evenly spaced as can be, the first and the last among them.

    >>> evenly(range(10), 4), evenly([1, 2], 4)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(values) <= count:
        return list(values)
    return [values[round(k * (len(values) - 1) / (count - 1))] for k in range(count)]


def _table(folder: Path, step: int) -> pa.Table:
    try:
        return read_table(folder, step)
    except (OSError, ValueError) as error:
        do = "move the file away; the report does without it"
        raise DataError(f"rollouts {str(folder / f'{step:06d}.parquet')!r}", got=error, do=do) from error


def _groups(table: pa.Table) -> Iterator[pa.Table]:
    """Groups by label: in the order in which they were drawn, so that runs on the same data show the same prompts."""
    members: dict[int, list[int]] = {}
    for row, label in enumerate(table["group"].to_pylist()):
        members.setdefault(label, []).append(row)
    for label in sorted(members):
        yield table.take(members[label])


def _fitting(rows: pa.Table, size: float, decode: Decode) -> dict[str, Any] | None:
    """The group, or None where it has more than `size` bytes; of one that is far larger no text is made."""
    if _BYTES_OF_A_TOKEN * len(rows["tokens"].combine_chunks().flatten()) > size:
        return None
    group = _group(rows.to_pylist(), decode)
    return group if _bytes(group) <= size else None


def _part(rows: pa.Table, size: float, decode: Decode) -> dict[str, Any]:
    """The group with as many of its rows, from the first on, as have `size` bytes."""
    group = _group(rows.to_pylist(), decode)
    totals = accumulate(_bytes(row) for row in group["rows"])
    room = size - _bytes({**group, "rows": []})
    return {**group, "rows": [row for row, total in zip(group["rows"], totals, strict=True) if total <= room]}


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _group(rows: Sequence[Mapping[str, Any]], decode: Decode) -> dict[str, Any]:
    """The rows of one prompt; the tokens before any of them begins to act are said once."""
    prompt = min(row["action"].index(True) if True in row["action"] else len(row["action"]) for row in rows)
    ids = rows[0]["tokens"][:prompt]
    return {
        **{name: rows[0][name] for name in _GROUP_FIELDS if name in rows[0]},
        "size": len(rows),
        "mean": short(sum(_score(row) for row in rows) / len(rows)),
        "prompt_at": {"tokens": ids, "text": pieces(decode, ids)},
        "rows": [_row(row, prompt, decode) for row in rows],
    }


def _row(row: Mapping[str, Any], prompt: int, decode: Decode) -> dict[str, Any]:
    """What is said of the whole row, of each of its tokens from `prompt` on, and of what else the store has of it."""
    known = {*_GROUP_FIELDS, *_ROW_FIELDS, *TOKEN_FIELDS}
    more = {name: short(value) for name, value in row.items() if name not in known and not _is_nested(value)}
    fields = {name: _column(row[name][prompt:]) for name in TOKEN_FIELDS if row.get(name) is not None}
    # One token of the prompt goes first, so that a space in front of the completion is seen.
    behind = min(prompt, 1)
    texts = pieces(decode, row["tokens"][prompt - behind :])[behind:]
    return {
        **{name: short(row[name]) for name in _ROW_FIELDS if name in row},
        "score": short(_score(row)),
        "at": {**fields, "text": texts},
        "more": more,
    }


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


def _score(row: Mapping[str, Any]) -> float:
    return float(sum(row.get("reward") or ()))


def _column(values: Sequence[Any]) -> Any:
    """Values at tokens; one value if it is the same at all."""
    found = [short(value) for value in values]
    return found[0] if found and all(value == found[0] for value in found) else found
