"""Rollouts on disk are real Parquet, ragged as the rows are."""

from __future__ import annotations

from pathlib import Path

import torch

from purerl.batch import collate, with_fields
from purerl.store.rollouts import read_rollouts, write_rollouts


def test_rows_come_back_with_their_own_lengths(tmp_path: Path) -> None:
    shared = {"group": 7, "example": 3, "temperature": 1.0}
    rows = [
        {"tokens": [5, 6, 7], "action": [0, 1, 1], "rollout_logp": [0.0, -0.5, -1.0], "row": 0, **shared},
        {"tokens": [5, 8], "action": [0, 1], "rollout_logp": [0.0, -0.25], "row": 1, **shared},
    ]
    batch = with_fields(collate(rows), advantage=torch.full((2, 3), 2.0))
    write_rollouts(tmp_path, 12, batch, [{"completion": "ab"}, {"completion": "c"}])
    one, other = read_rollouts(tmp_path, 12)
    assert one["tokens"] == [5, 6, 7]
    assert one["rollout_logp"] == [0.0, -0.5, -1.0]
    assert one["action"] == [False, True, True]
    assert other["tokens"] == [5, 8]
    assert other["advantage"] == [2.0, 2.0]
    assert (other["step"], other["row"], other["group"], other["completion"]) == (12, 1, 7, "c")
    assert [path.name for path in tmp_path.iterdir()] == ["000012.parquet"]
