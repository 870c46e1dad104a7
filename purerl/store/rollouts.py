"""One Parquet file of rollouts for each step: what was sampled, what it earned, and what was made of it.

A row holds its texts, its tokens, and per token the fields of `TOKEN_FIELDS`, cut to its own length. The file of a step
that is done again replaces the one before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from tensordict import TensorDict

__all__ = ["TOKEN_FIELDS", "read_rollouts", "read_table", "stored_steps", "write_rollouts"]

_SCORED = ("old_logp", "ref_logp", "teacher_logp", "reward_model_logp", "old_value")
TOKEN_FIELDS = ("tokens", "action", "mask", "reward", "rollout_logp", *_SCORED, "advantage", "returns", "version")
_ROW_FIELDS = ("row", "group", "example", "temperature", "truncated")


def write_rollouts(folder: Path, step: int, batch: TensorDict, texts: Sequence[Mapping[str, Any]]) -> Path:
    """Write `batch`, and beside each row its `texts`, as the rollouts of `step`; the file appears whole, or not."""
    import pyarrow as pa
    import pyarrow.parquet

    columns: dict[str, Any] = {"step": [step] * len(texts)}
    columns |= {name: batch[name].numpy() for name in _ROW_FIELDS if name in batch.keys()}
    columns |= {name: [text[name] for text in texts] for name in texts[0]} if texts else {}
    columns |= {name: _ragged(batch, name) for name in TOKEN_FIELDS if name in batch.keys()}
    path = folder / f"{step:06d}.parquet"
    partial = path.with_suffix(".partial")
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), partial)
    os.replace(partial, path)
    return path


def _ragged(batch: TensorDict, name: str) -> Any:
    import pyarrow as pa

    there = batch["attention_mask"]
    ends = [0, *there.sum(-1).cumsum(0).tolist()]
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(batch[name][there].numpy()))


def stored_steps(folder: Path) -> list[int]:
    """The steps that have rollouts in `folder`, in order; none where there is no such folder."""
    return sorted(int(path.stem) for path in folder.glob("*.parquet"))


def read_table(folder: Path, step: int) -> pa.Table:
    """The rollouts of `step` as an Arrow table, for those who want some of its rows only."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(folder / f"{step:06d}.parquet")


def read_rollouts(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rollouts of `step`, a dict for each row."""
    return read_table(folder, step).to_pylist()
