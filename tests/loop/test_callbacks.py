"""Callbacks of a run: when each is called, what is on disk then, and what an exception does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import purerl
from purerl.errors import ConfigError
from purerl.loop.callbacks.control import Control

from .small import fake


def _records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_callbacks_are_called_in_their_order(tmp_path: Path) -> None:
    """`on_step` and `on_evaluation` before the record is written, `on_checkpoint` when everything is on disk."""
    run, calls, shown = tmp_path / "run", [], {}

    def note(name: str, record: Mapping[str, Any], control: Control) -> None:
        written = len(_records(run)) if (run / "metrics.jsonl").exists() else 0
        assert record["step"] == control.step == written
        calls.append((name, record["step"]))
        shown[record["step"]] = dict(record)

    def on_checkpoint(path: Path, control: Control) -> None:
        step = int(path.name)
        assert _records(run)[-1]["step"] == step == control.step
        assert (path / "manifest.json").exists()
        assert (run / "rollouts" / f"{step:06d}.parquet").exists()
        calls.append(("checkpoint", step))

    purerl.train(
        fake(max_steps=4),
        directory=run,
        on_step=lambda record, control: note("step", record, control),
        on_evaluation=lambda record, control: note("evaluation", record, control),
        on_checkpoint=on_checkpoint,
    )
    assert calls == [
        ("evaluation", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("checkpoint", 2),
        ("step", 3), ("step", 4), ("evaluation", 4), ("checkpoint", 4),
    ]  # fmt: skip
    for record in _records(run):
        before = shown[record["step"]]
        late = {"time/store", "time/cpu"}
        assert before.keys() - late == record.keys() - late
        assert all(before[name] == value for name, value in record.items() if name not in late)


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if not key.startswith("time/")} for one in records]


def test_exception_in_a_callback_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    def fail(record: dict[str, Any], control: Control) -> None:
        record["loss"] = record["step"]  # a change of the record has no effect on the run
        if record["step"] == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        purerl.train(fake(max_steps=4), directory=tmp_path / "run", on_step=fail)
    assert [record["step"] for record in _records(tmp_path / "run")] == [0, 1, 2, 3]
    steps = []

    def on_step(record: Mapping[str, Any], control: Control) -> None:
        steps.append(record["step"])

    purerl.train(fake(max_steps=4), directory=tmp_path / "run", on_step=on_step)
    assert steps == [3, 4], "the run resumes from the checkpoint of step 2"
    purerl.train(fake(max_steps=4), directory=tmp_path / "other")
    assert without_times(_records(tmp_path / "run")) == without_times(_records(tmp_path / "other"))


@pytest.mark.parametrize("name", ["on_step", "on_evaluation", "on_checkpoint"])
def test_callback_that_is_no_function_of_two_arguments_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\n  got:  3\n"):
        purerl.train(fake(), directory=tmp_path / "run", **{name: 3})
    with pytest.raises(ConfigError, match=f"(?s)^{name}\n  got:  .*too many positional arguments\n.*, control\\)"):
        purerl.train(fake(), directory=tmp_path / "run", **{name: lambda record: None})
    assert not (tmp_path / "run").exists()
