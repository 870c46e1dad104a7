"""Rollouts in Parquet files: rows with their own lengths, the batch bit for bit, and the metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from tensordict import TensorDict

from purerl.batch import FIELDS, SCHEMA_VERSION, collate, with_fields
from purerl.store.rollouts import (
    Metadata,
    read_batch,
    read_metadata,
    read_rollouts,
    read_table,
    token_columns,
    write_rollouts,
)
from purerl.store.step_files import stored_steps

TEXTS = ({"completion": "ab"}, {"completion": "c"})


def _batch() -> TensorDict:
    """Two rows of different lengths, with a field of every kind of axes and dtype."""
    shared = {"group": 7, "example": 3, "temperature": 0.7}
    rows: list[dict[str, Any]] = [
        {"tokens": [5, 6, 7], "action": [0, 1, 1], "rollout_logp": [0.0, -0.5, -1.0], "row": 0, **shared},
        {"tokens": [5, 8], "action": [0, 1], "rollout_logp": [0.0, -0.25], "row": 1, **shared},
    ]
    return collate([row | {"components": [0.1, 2.0], "truncated": row["row"] == 0} for row in rows])


def _scored() -> TensorDict:
    """`_batch` with computed fields: a mask without the second row, advantages, and the teacher's likely tokens."""
    batch = _batch()
    attention_mask = batch["attention_mask"]
    values = torch.where(attention_mask, torch.linspace(-1, 1, 6).view(2, 3) / 3, 0.0)
    choices = attention_mask[..., None] * torch.tensor([[[1, 9]]])
    return with_fields(
        batch,
        advantage=values,
        teacher_topk_tokens=choices,
        teacher_topk_logp=values[..., None] - choices,
        mask=batch["action"] & (batch["row"] == 0)[:, None],
    )


def _write(folder: Path, batch: TensorDict, state: Any = ()) -> None:
    write_rollouts(folder, 12, batch, TEXTS, Metadata("grpo 1", state))


def test_rows_are_read_with_their_own_lengths(tmp_path: Path) -> None:
    _write(tmp_path, with_fields(_batch(), advantage=torch.full((2, 3), 2.0)))
    first, second = read_rollouts(tmp_path, 12)
    assert first["tokens"] == [5, 6, 7]
    assert first["rollout_logp"] == [0.0, -0.5, -1.0]
    assert first["action"] == [False, True, True]
    assert second["tokens"] == [5, 8]
    assert second["advantage"] == [2.0, 2.0]
    assert (second["step"], second["row"], second["group"], second["completion"]) == (12, 1, 7, "c")
    assert [path.name for path in tmp_path.iterdir()] == ["000012.parquet"]


def test_batch_is_read_bit_for_bit(tmp_path: Path) -> None:
    batch = _scored()
    _write(tmp_path, batch)
    restored = read_batch(tmp_path, 12)
    assert set(restored.keys()) == set(batch.keys())
    for name in batch.keys():
        assert restored[name].dtype == batch[name].dtype, name
        assert torch.equal(restored[name], batch[name]), name


def test_columns_are_the_fields_of_the_batch_and_the_texts(tmp_path: Path) -> None:
    batch = _scored()
    _write(tmp_path, batch)
    names = read_table(tmp_path, 12).column_names
    assert set(names) == {"step", "completion", *batch.keys()} - {"attention_mask"}
    in_schema = [name for name in FIELDS if name in batch.keys() and name != "attention_mask"]
    assert names == ["step", "completion", *in_schema]
    assert token_columns(names) == ["tokens", "action", "mask", "rollout_logp", "advantage"]


def test_metadata_have_the_schema_version_the_fingerprint_and_the_state(tmp_path: Path) -> None:
    _write(tmp_path, _batch(), state=(torch.tensor([0.1, 0.2]), {"steps": 3}))
    metadata = read_metadata(tmp_path, 12)
    assert metadata.algorithm == "grpo 1"
    assert torch.equal(metadata.state[0], torch.tensor([0.1, 0.2]))
    assert metadata.state[1] == {"steps": 3}
    stored = parquet.read_schema(tmp_path / "000012.parquet").metadata
    assert stored[b"purerl.schema"] == str(SCHEMA_VERSION).encode()


def test_episodes_of_several_turns_are_read_as_they_were_written(tmp_path: Path) -> None:
    shared = {"group": 7, "example": 3}
    rows: list[dict[str, Any]] = [
        {"tokens": [5, 6, 7, 8], "action": [0, 1, 0, 1], "turn": [0, 0, 1, 1], "row": 0, "role": 1, **shared},
        {"tokens": [5, 8], "action": [0, 1], "turn": [0, 0], "row": 1, "role": 0, **shared},
    ]
    labels = [2**63 - 1, -(2**63)]  # those of anchors are hashes
    batch = collate([row | {"anchor": [labels[turn] for turn in row["turn"]]} for row in rows])
    messages = '[{"role": "tool", "content": "é\\ud800"}]'
    texts = [{"prompt": "half \ud800", "messages": messages}, {"prompt": "p", "messages": None}]
    write_rollouts(tmp_path, 12, batch, texts, Metadata("gigpo", ()))
    restored = read_batch(tmp_path, 12)
    assert all(torch.equal(restored[name], batch[name]) for name in ("turn", "anchor", "role", "tokens"))
    first, second = read_rollouts(tmp_path, 12)
    assert (first["turn"], first["anchor"][-1], first["messages"]) == ([0, 0, 1, 1], -(2**63), messages)
    assert (first["prompt"], second["messages"]) == ("half \\ud800", None)


def test_file_is_replaced_and_steps_are_listed_in_order(tmp_path: Path) -> None:
    assert stored_steps(tmp_path / "rollouts") == []
    for step in (1_000_000, 3, 20, 3):
        write_rollouts(tmp_path / "rollouts", step, _batch(), TEXTS, Metadata("a", ()))
    assert stored_steps(tmp_path / "rollouts") == [3, 20, 1_000_000]
    assert len(read_rollouts(tmp_path / "rollouts", 3)) == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_without_texts_can_be_written(tmp_path: Path, rows: int) -> None:
    write_rollouts(tmp_path, 1, _batch()[:rows], [{}] * rows, Metadata("a", ()))
    assert torch.equal(read_batch(tmp_path, 1)["tokens"], _batch()[:rows]["tokens"])
