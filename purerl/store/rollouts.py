"""One Parquet file of rollouts for each step: what was sampled, what it earned, and what was made of it.

A row holds its texts, its tokens, and per token the fields of `TOKEN_FIELDS`, cut to its own length. The file of a step
that is done again replaces the one before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensordict import TensorDict

__all__ = ["TOKEN_FIELDS", "read_rollouts", "write_rollouts"]

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


def read_rollouts(folder: Path, step: int) -> list[dict[str, Any]]:
    """The rollouts of `step`, a dict for each row."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(folder / f"{step:06d}.parquet").to_pylist()
