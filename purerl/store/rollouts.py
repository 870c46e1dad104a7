"""One Parquet file of rollouts per step: the whole batch, with everything that was computed about it.

The columns are the fields of the schema that the batch has, the texts of each row, its ground truth, and the value of
each reward component as ``reward/<name>``, without its weight. A token field is a list as long as the row. In episodes
of several turns, ``messages`` is the conversation as JSON. The metadata of the file have the version of the schema, the
fingerprint of the algorithm, and the state of its advantage transform before the step, so that the step can be computed
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from purerl.store.step_files import step_path, storable_text, write_step

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from tensordict import TensorDict

__all__ = [
    "Metadata",
    "read_batch",
    "read_metadata",
    "read_rollouts",
    "read_table",
    "to_batch",
    "to_metadata",
    "token_columns",
    "total_reward",
    "write_rollouts",
]

_PREFIX = "purerl."


class Metadata(NamedTuple):
    """The origin of a file of rollouts: the algorithm's fingerprint, and the state of its transform before the step."""

    algorithm: str
    state: Any


def write_rollouts(
    folder: Path, step: int, batch: TensorDict, texts: Sequence[Mapping[str, Any]], metadata: Metadata
) -> Path:
    """Write `batch` and the `texts` of its rows as the rollouts of `step`, atomically; an existing file is replaced.

    The values in `texts` are strings, those whose name starts with ``reward/`` are numbers; None is stored as null.
    """
    import pyarrow as pa

    from purerl.batch import FIELDS, SCHEMA_VERSION

    columns: dict[str, Any] = {"step": [step] * len(batch)}
    columns |= {name: _text_column(name, texts) for name in dict.fromkeys(name for text in texts for name in text)}
    offsets = pa.array([0, *batch["attention_mask"].sum(-1).cumsum(0).tolist()], pa.int32())
    names = [name for name in FIELDS if name in batch.keys() and name != "attention_mask"]
    columns |= {name: _column(batch, name, offsets) for name in names}
    facts = {"schema": str(SCHEMA_VERSION), "algorithm": metadata.algorithm, "state": _packed(metadata.state)}
    table = pa.table(columns).replace_schema_metadata({_PREFIX + name: value for name, value in facts.items()})
    return write_step(folder, step, table)


def _text_column(name: str, texts: Sequence[Mapping[str, Any]]) -> pa.Array:
    import pyarrow as pa

    values = [storable_text(text.get(name)) for text in texts]
    return pa.array(values, pa.float64() if name.startswith("reward/") else pa.string())


def _column(batch: TensorDict, name: str, offsets: pa.Array) -> Any:
    """A field as an Arrow array: lists of fixed size for an axis of its own, lists of each row's tokens for time.

    `offsets` has the index of the first token of each row among the tokens of all rows, and their number.
    """
    import pyarrow as pa

    from purerl.batch import ROW_FIELDS

    value = batch[name]
    flat = value if name in ROW_FIELDS else value[batch["attention_mask"]]
    array = pa.array(flat.flatten().numpy())
    if flat.ndim > 1:
        array = pa.FixedSizeListArray.from_arrays(array, flat.shape[-1])
    return array if name in ROW_FIELDS else pa.ListArray.from_arrays(offsets, array)


def _packed(state: Any) -> bytes:
    import torch

    torch.save(state, (packed := BytesIO()))
    return packed.getvalue()


def read_table(folder: Path, step: int, columns: Collection[str] | None = None) -> pa.Table:
    """The rollouts of `step` as an Arrow table; with `columns`, only those of them that the file has."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(step_path(folder, step)) as file:
        names = file.schema_arrow.names
        return file.read(None if columns is None else [name for name in names if name in columns])


def read_rollouts(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rollouts of `step`, a dict per row."""
    return read_table(folder, step).to_pylist()


def read_batch(folder: Path, step: int) -> TensorDict:
    """The batch of `step`, as it was written."""
    return to_batch(read_table(folder, step))


def to_batch(table: pa.Table) -> TensorDict:
    """The batch in the columns of `table` that are fields of the schema, as `purerl.batch.collate` of its rows.

    Raises: BatchError for a table without rows, and for a row whose columns have different numbers of tokens.
    """
    import torch
    from tensordict import TensorDict

    from purerl.batch import FIELDS, ROW_FIELDS
    from purerl.errors import BatchError

    if not len(table):
        raise BatchError("rollouts", got="no rows", need="at least one")
    columns = {name: table[name].combine_chunks() for name in table.column_names if name in FIELDS}
    lengths = torch.from_numpy(columns["tokens"].value_lengths().to_numpy().astype("int64"))
    attention_mask = torch.arange(int(lengths.max())) < lengths[:, None]
    fields = {
        name: _values(name, column).reshape(len(table), *(-1,) * FIELDS[name].axes.count(" "))
        if name in ROW_FIELDS
        else _padded(name, column, attention_mask)
        for name, column in columns.items()
    }
    fields["attention_mask"] = attention_mask
    fields.setdefault("mask", fields["action"])
    return TensorDict(fields, batch_size=[len(table)])


def _padded(name: str, column: pa.ListArray, attention_mask: torch.Tensor) -> torch.Tensor:
    """The values of a field of tokens, padded on the right with 0: [rows, time], or with one more axis."""
    from purerl.batch import FIELDS
    from purerl.errors import BatchError

    counts, expected = column.value_lengths().to_numpy(), attention_mask.sum(-1).numpy()
    if (counts != expected).any():
        row = int((counts != expected).argmax())
        got, need = f"{counts[row]} values", f"{expected[row]}, one per token"
        raise BatchError(f"field {name!r} of row {row}", got=got, need=need)
    items = _values(name, column.flatten())
    items = items.reshape(int(expected.sum()), *(-1,) * (FIELDS[name].axes.count(" ") - 1))
    padded = items.new_zeros(attention_mask.shape + items.shape[1:])
    padded[attention_mask] = items
    return padded


def _values(name: str, array: pa.Array) -> torch.Tensor:
    """All numbers in `array`, which may be lists of numbers, with the dtype of the field `name`: one axis."""
    import pyarrow as pa
    import torch

    from purerl.batch import FIELDS

    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    if pa.types.is_null(array.type):
        array = array.cast(pa.int64())
    return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy()).to(FIELDS[name].dtype)


def read_metadata(folder: Path, step: int) -> Metadata:
    """The metadata of the rollouts of `step`."""
    import pyarrow.parquet

    return to_metadata(pyarrow.parquet.read_schema(step_path(folder, step)))


def to_metadata(schema: pa.Schema) -> Metadata:
    """The metadata in the `schema` of a table of rollouts."""
    import torch

    facts = schema.metadata
    state = torch.load(BytesIO(facts[f"{_PREFIX}state".encode()]), weights_only=True)
    return Metadata(facts[f"{_PREFIX}algorithm".encode()].decode(), state)


def token_columns(names: Sequence[str]) -> list[str]:
    """The columns in `names` that have one number per token."""
    from purerl.batch import FIELDS

    return [name for name in names if name in FIELDS and FIELDS[name].axes == "rows time"]


def total_reward(row: Mapping[str, Any]) -> float | None:
    """The sum of the rewards of the tokens of `row`; None if no token is counted, because the row has no reward.

    A row that a correction has rejected has a reward, and a row without the field `mask` is counted.

    >>> total_reward({"reward": [0.0, 0.5], "mask": [False, True]}), total_reward({"reward": [0.0], "mask": [False]})
    (0.5, None)
    """
    mask = row.get("mask")
    is_counted = mask is None or any(mask) or any(row.get("rejected") or ())
    return float(sum(row.get("reward") or ())) if is_counted else None
