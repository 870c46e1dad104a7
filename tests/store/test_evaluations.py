"""Completions of evaluations in Parquet files, those of several turns among them."""

from __future__ import annotations

from pathlib import Path

from purerl.store.evaluations import read_evaluation, write_evaluation

ROW = {"data_set": "math", "index": 1, "attempt": 0, "prompt": "p", "completion": "c", "tokens": 3, "finish": "stop"}


def test_conversation_is_a_column_of_text_only_if_a_completion_has_one(tmp_path: Path) -> None:
    folder = tmp_path / "evaluations"
    assert "messages" not in read_evaluation(write_evaluation(folder, 1, [ROW]).parent, 1)[0]
    messages = '[{"role": "assistant", "content": "\\ud800 é"}]'
    write_evaluation(folder, 2, [ROW, ROW | {"messages": messages}, ROW | {"messages": None, "reward/exact": 0.5}])
    rows = read_evaluation(folder, 2)
    assert [row["messages"] for row in rows] == [None, messages, None]
    assert [row["reward/exact"] for row in rows] == [None, None, 0.5]
