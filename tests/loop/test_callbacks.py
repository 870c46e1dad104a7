"""Callbacks of a run: when each is called, what is on disk then, and what an exception does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import purerl
from purerl.errors import ConfigError

from .small import fake


def _records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_callbacks_are_called_when_everything_about_the_step_is_on_disk(tmp_path: Path) -> None:
    run, calls = tmp_path / "run", []

    def note(name: str, record: Mapping[str, Any]) -> None:
        step = record["step"]
        assert _records(run)[-1] == record
        assert step == 0 or (run / "rollouts" / f"{step:06d}.parquet").exists()
        calls.append((name, step))

    def on_checkpoint(path: Path) -> None:
        assert (path / "manifest.json").exists()
        calls.append(("checkpoint", int(path.name)))

    purerl.train(
        fake(max_steps=4),
        directory=run,
        on_step=lambda record: note("step", record),
        on_evaluation=lambda record: note("evaluation", record),
        on_checkpoint=on_checkpoint,
    )
    assert calls == [
        ("evaluation", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("checkpoint", 2),
        ("step", 3), ("step", 4), ("evaluation", 4), ("checkpoint", 4),
    ]  # fmt: skip


def _without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if not key.startswith("time/")} for one in records]


def test_exception_in_a_callback_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    def fail(record: Mapping[str, Any]) -> None:
        record["loss"] = record["step"]  # a change of the record has no effect on the run
        if record["step"] == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        purerl.train(fake(max_steps=4), directory=tmp_path / "run", on_step=fail)
    assert [record["step"] for record in _records(tmp_path / "run")] == [0, 1, 2, 3]
    steps = []
    purerl.train(fake(max_steps=4), directory=tmp_path / "run", on_step=lambda record: steps.append(record["step"]))
    assert steps == [3, 4], "the run resumes from the checkpoint of step 2"
    purerl.train(fake(max_steps=4), directory=tmp_path / "other")
    assert _without_times(_records(tmp_path / "run")) == _without_times(_records(tmp_path / "other"))


@pytest.mark.parametrize("name", ["on_step", "on_evaluation", "on_checkpoint"])
def test_callback_that_is_no_function_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}\n  got:  3\n"):
        purerl.train(fake(), directory=tmp_path / "run", **{name: 3})
    assert not (tmp_path / "run").exists()
