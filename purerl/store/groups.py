"""Groups that were sampled and scored, but not trained on yet, as one Parquet file of a checkpoint.

Each trajectory is a row. A field of the schema is a column: one value, or a list with a value for each token. Rows are
not padded, and may have different fields. Texts, results of reward functions and metrics are JSON. The metadata of the
file have its version, and the groups: the number of the draw, how many trajectories it has, and its failure.

Numbers are stored with 64 bits, so those of Python are read as they were written. Reading a file runs no code of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import asdict, field, frozen

from purerl.errors import BatchError, CheckpointError, nearest
from purerl.ranks import Ranks
from purerl.rewards.outcomes import Failure
from purerl.rewards.results import RewardResult
from purerl.rollouts.types import Group, Trajectory
from purerl.system.digests import DigestWriter
from purerl.system.nesting import read_json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["WaitingGroups", "read_groups", "read_routes", "write_groups", "write_routes"]

_VERSION = 1
_METADATA_KEY = b"purerl.groups"
_PREFIX = "field/"  # of the columns that are fields
_JSON_COLUMNS = ("fields", "texts", "result", "metrics")
_GROUPS_FILE, _ROUTES_FILE = "groups.parquet", "routes.safetensors"


@frozen
class WaitingGroups:
    """Groups that have not been trained yet, which every rank has. They are written like the state of a trainer.

    `routes` are the records of the experts of their rows, by number, on rank 0.
    """

    groups: Sequence[Group] = ()
    routes: Mapping[int, np.ndarray] = field(factory=dict)

    @classmethod
    def read(cls, path: Path) -> WaitingGroups:
        """The groups in the folder `path` of a checkpoint; none if there is no such folder."""
        if not path.is_dir():
            return cls()
        routes = path / _ROUTES_FILE
        return cls(read_groups(path / _GROUPS_FILE), read_routes(routes) if routes.exists() else {})

    def write(self, path: Path, ranks: Ranks) -> dict[str, str]:
        """Write them into the folder `path`, on rank 0; return the digests of the files."""
        if not ranks.is_first:
            return {}
        routes = {_ROUTES_FILE: write_routes(path / _ROUTES_FILE, self.routes)} if self.routes else {}
        return {_GROUPS_FILE: write_groups(path / _GROUPS_FILE, self.groups), **routes}


def write_groups(path: Path, groups: Sequence[Group]) -> str:
    """Write `groups` to the file at `path`, which is replaced; return its digest.

    Sequences in fields are read as lists. Texts and metrics have strings, numbers, booleans, None, lists and dicts with
    names.

    Raises: BatchError for fields that are not in the schema, CheckpointError for other values, OSError if the file
    cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet

    table = _to_table(groups)
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    with path.open("wb") as file:
        writer = DigestWriter(file)
        writer.write(memoryview(sink.getvalue()))
    return writer.digest


def write_routes(path: Path, records: Mapping[int, np.ndarray]) -> str:
    """Write the `records` of experts of the rows of groups, by number, to the file at `path`; return its digest."""
    from safetensors.numpy import save

    with path.open("wb") as file:
        writer = DigestWriter(file)
        writer.write(save({str(number): record for number, record in records.items()}))
    return writer.digest


def read_routes(path: Path) -> dict[int, np.ndarray]:
    """The records in the file at `path`, as they were written. Raises CheckpointError if it is damaged or missing."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return {int(number): record for number, record in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, str(error)) from error


def read_groups(path: Path) -> list[Group]:
    """The groups in the file at `path`, as they were written.

    Raises: CheckpointError if it is damaged, or not a file of `write_groups` that this version can read.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
        heads = _read_heads(path, table)
        return _to_groups(heads, _to_trajectories(table))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, next(iter(str(error).splitlines()), repr(error))) from error


def _to_table(groups: Sequence[Group]) -> pa.Table:
    import pyarrow as pa

    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    fields = [trajectory.fields for trajectory in trajectories]
    names = list(dict.fromkeys(name for row in fields for name in row))
    values = ([list(t.fields), dict(t.texts), asdict(t.result), dict(t.metrics)] for t in trajectories)
    json_rows = [[_to_json(value) for value in row] for row in values]
    columns: dict[str, Any] = {
        name: pa.array([row[k] for row in json_rows], pa.string()) for k, name in enumerate(_JSON_COLUMNS)
    }
    columns |= {_PREFIX + name: _to_column(name, [row.get(name) for row in fields]) for name in names}
    heads = [[group.draw, len(group.trajectories), group.failure and asdict(group.failure)] for group in groups]
    metadata = {_METADATA_KEY: json.dumps({"version": _VERSION, "groups": heads}).encode()}
    return pa.table(columns).replace_schema_metadata(metadata)


def _read_heads(path: Path, table: pa.Table) -> list[Any]:
    """The records of the groups, without their trajectories."""
    stored = (table.schema.metadata or {}).get(_METADATA_KEY)
    if stored is None:
        raise _unreadable(path, "a Parquet file without groups")
    content = read_json(stored)
    if content["version"] != _VERSION:
        raise _unreadable(path, f"version {content['version']} of its format; this one is {_VERSION}")
    heads = content["groups"]
    expected = sum(count for _, count, _ in heads)
    if expected != len(table):
        raise _unreadable(path, f"{len(table)} trajectories; its groups have {expected}")
    return heads


def _to_groups(heads: Sequence[Any], trajectories: Sequence[Trajectory]) -> list[Group]:
    rows = iter(trajectories)
    return [
        Group(draw, tuple(next(rows) for _ in range(count)), _to_failure(failure)) for draw, count, failure in heads
    ]


def _to_trajectories(table: pa.Table) -> list[Trajectory]:
    names = [name.removeprefix(_PREFIX) for name in table.column_names if name.startswith(_PREFIX)]
    columns = {name: _to_values(table[_PREFIX + name].combine_chunks()) for name in names}
    json_rows = zip(*(map(read_json, table[name].to_pylist()) for name in _JSON_COLUMNS), strict=True)
    return [
        Trajectory({name: columns[name][k] for name in fields}, texts, _to_result(result), metrics)
        for k, (fields, texts, result, metrics) in enumerate(json_rows)
    ]


def _to_column(name: str, values: Sequence[Any]) -> pa.Array:
    """The field `name` as an Arrow array; null where a row does not have it."""
    import torch

    from purerl.batch import FIELDS

    if name not in FIELDS:
        raise BatchError(f"unknown field {name!r} of a trajectory", do=nearest(name, FIELDS))
    dtype = {torch.bool: "bool", torch.int64: "int64", torch.float32: "float64"}[FIELDS[name].dtype]
    try:
        return _to_array(values, FIELDS[name].axes.count(" "), dtype)
    except (ValueError, TypeError, OverflowError) as error:
        need = f"one value of {FIELDS[name]!r}, or nested lists of them"
        raise BatchError(f"field {name!r} of a trajectory", got=error, need=need) from error


def _to_array(values: Sequence[Any], depth: int, dtype: str) -> pa.Array:
    """`values`, lists in lists that are nested `depth` times, as an Arrow array; None is null."""
    import pyarrow as pa

    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    if depth == 0:
        present = np.array([0 if value is None else value for value in values], dtype)
        return pa.array(present, mask=missing)
    lists = [() if value is None else value for value in values]
    offsets = pa.array(np.concatenate([[0], np.cumsum([len(value) for value in lists])]).astype(np.int64))
    items = _to_array([*chain.from_iterable(lists)], depth - 1, dtype)
    return pa.LargeListArray.from_arrays(offsets, items, mask=pa.array(missing) if missing.any() else None)


def _to_values(array: Any) -> list[Any]:
    """The values of an Arrow array, with lists for lists."""
    from pyarrow import types

    missing = array.is_null().to_numpy(zero_copy_only=False).tolist()
    if types.is_large_list(array.type):
        items, offsets = _to_values(array.values), array.offsets.to_numpy().tolist()
        values = [items[start:end] for start, end in pairwise(offsets)]
    else:
        values = array.fill_null(False if types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False).tolist()
    return [None if is_missing else value for is_missing, value in zip(missing, values, strict=True)]


def _to_json(value: Any) -> str:
    """`value` as JSON in ASCII, so that half of a surrogate pair can be stored. NaN and infinity are kept."""
    try:
        return json.dumps(value, default=_to_plain)
    except (TypeError, ValueError) as error:
        need = "strings, numbers, booleans, None, lists and dicts"
        raise CheckpointError("a waiting group cannot be saved", got=error, need=need) from error


def _to_plain(value: Any) -> Any:
    """A mapping of another class as a dict, and a number of numpy or torch as one of Python."""
    if isinstance(value, Mapping):
        return dict(value)
    if not callable(item := getattr(value, "item", None)):
        raise TypeError(f"an object of type {type(value).__qualname__}")
    return item()


def _to_result(stored: Mapping[str, Any]) -> RewardResult:
    metrics = {name: (total, count) for name, (total, count) in stored.get("metrics", {}).items()}
    return RewardResult(**{**stored, "failure": _to_failure(stored["failure"]), "metrics": metrics})


def _to_failure(stored: Mapping[str, Any] | None) -> Failure | None:
    return Failure(**stored) if stored else None


def _unreadable(path: Path, got: str) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} cannot be loaded",
        got=got,
        need="the waiting groups of a checkpoint, written by this version of purerl",
        do="resume from another checkpoint, or with the version that has written it",
    )
