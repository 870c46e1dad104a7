"""Select completions for the report: full groups from evenly spaced steps, up to a size limit in bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purerl.errors import DataError
from purerl.report.decoding import Decode, decode_tokens, load_decoder
from purerl.report.numbers import round_number
from purerl.store.rollouts import read_table, stored_steps, token_columns, total_reward

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["evenly_spaced", "select_completions"]

_MAX_STEPS = 48
_MIN_BYTES_PER_TOKEN = 8  # of the id and the text of a token in JSON
_GROUP_FIELDS = ("step", "group", "example", "prompt")
_ROW_FIELDS = ("row", "completion", "finish", "truncated", "temperature")


def select_completions(run: Path, *, max_bytes: int) -> dict[str, Any]:
    """Return groups of completions of a run, at most `max_bytes` long as JSON, and the number of stored steps.

    `max_bytes` is divided equally among the selected steps. Bytes that a step does not use are available to later
    steps. If no group fits, the result has as many rows of one group as fit.

    Raises: DataError if a rollout file is not a complete Parquet file.
    """
    folder, decode = run / "rollouts", load_decoder(run)
    stored = stored_steps(folder)
    steps = evenly_spaced(stored, _MAX_STEPS)
    selected: list[dict[str, Any]] = []
    remaining_bytes = 0.0
    for step in steps:
        remaining_bytes += max_bytes / len(steps)
        for rows in _iterate_groups(_read_table(folder, step)):
            if (group := _group_if_it_fits(rows, remaining_bytes, decode)) is None:
                break
            selected.append(group)
            remaining_bytes -= _json_bytes(group)
    if steps and not selected:
        last_table = _read_table(folder, steps[-1])
        selected = [_truncated_group(rows, max_bytes, decode) for rows in islice(_iterate_groups(last_table), 1)]
    return {
        "groups": selected,
        "num_rows": sum(len(group["rows"]) for group in selected),
        "num_steps": len({group["step"] for group in selected}),
        "num_stored_steps": len(stored),
    }


def evenly_spaced(values: Sequence[Any], max_count: int) -> list[Any]:
    """Select at most `max_count` of `values`, as evenly spaced as possible, including the first and the last.

    >>> evenly_spaced(range(10), 4), evenly_spaced([1, 2], 4)
    ([0, 3, 6, 9], [1, 2])
    """
    if len(values) <= max_count:
        return list(values)
    return [values[round(k * (len(values) - 1) / (max_count - 1))] for k in range(max_count)]


def _read_table(folder: Path, step: int) -> pa.Table:
    try:
        return read_table(folder, step)
    except (OSError, ValueError) as error:
        path = folder / f"{step:06d}.parquet"
        need, do = "a complete Parquet file", "remove the file; the report then omits this step"
        raise DataError(f"rollout file {str(path)!r}", got=error, need=need, do=do) from error


def _iterate_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Iterate over groups in the order of their labels, so that runs on the same data show the same prompts."""
    members: dict[int, list[int]] = {}
    for row, label in enumerate(table["group"].to_pylist()):
        members.setdefault(label, []).append(row)
    for label in sorted(members):
        yield table.take(members[label])


def _group_if_it_fits(rows: pa.Table, max_bytes: float, decode: Decode) -> dict[str, Any] | None:
    """Return the group, or None if it is larger than `max_bytes`. A group that is far too large is not decoded."""
    if _MIN_BYTES_PER_TOKEN * len(rows["tokens"].combine_chunks().flatten()) > max_bytes:
        return None
    group = _group(rows.to_pylist(), decode)
    return group if _json_bytes(group) <= max_bytes else None


def _truncated_group(rows: pa.Table, max_bytes: float, decode: Decode) -> dict[str, Any]:
    """Return the group with as many of its first rows as fit in `max_bytes`."""
    group = _group(rows.to_pylist(), decode)
    totals = accumulate(_json_bytes(row) for row in group["rows"])
    remaining_bytes = max_bytes - _json_bytes({**group, "rows": []})
    fitting = [row for row, total in zip(group["rows"], totals, strict=True) if total <= remaining_bytes]
    return {**group, "rows": fitting}


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _group(rows: Sequence[Mapping[str, Any]], decode: Decode) -> dict[str, Any]:
    """The rows of one prompt. The tokens before the first action token of any row are stored once, as the prompt."""
    num_prompt_tokens = min(_first_action(row["action"]) for row in rows)
    ids = rows[0]["tokens"][:num_prompt_tokens]
    rewards = [reward for row in rows if (reward := total_reward(row)) is not None]
    return {
        **{name: rows[0][name] for name in _GROUP_FIELDS if name in rows[0]},
        "size": len(rows),
        "mean_reward": round_number(sum(rewards) / len(rewards)) if rewards else None,
        "prompt_tokens": {"tokens": ids, "text": decode_tokens(decode, ids)},
        "rows": [_row(row, num_prompt_tokens, decode) for row in rows],
    }


def _first_action(action: Sequence[bool]) -> int:
    return action.index(True) if True in action else len(action)


def _row(row: Mapping[str, Any], num_prompt_tokens: int, decode: Decode) -> dict[str, Any]:
    """The fields of a row, its fields per token after the prompt, and under `extra` all other stored values."""
    columns = token_columns(list(row))
    known = {*_GROUP_FIELDS, *_ROW_FIELDS, *columns}
    extra = {name: round_number(value) for name, value in row.items() if name not in known and not _is_nested(value)}
    fields = {name: _compress(row[name][num_prompt_tokens:]) for name in columns if row[name] is not None}
    # Decoding starts one token earlier, so that a space at the start of the completion is kept.
    context = min(num_prompt_tokens, 1)
    text = decode_tokens(decode, row["tokens"][num_prompt_tokens - context :])[context:]
    return {
        **{name: round_number(row[name]) for name in _ROW_FIELDS if name in row},
        "reward": round_number(total_reward(row)),
        "per_token": {**fields, "text": text},
        "extra": extra,
    }


def _is_nested(value: Any) -> bool:
    return isinstance(value, list | dict)


def _compress(values: Sequence[Any]) -> Any:
    """The rounded values of all tokens, or a single value if they are all equal."""
    rounded = [round_number(value) for value in values]
    return rounded[0] if rounded and all(value == rounded[0] for value in rounded) else rounded
