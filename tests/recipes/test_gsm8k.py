"""`gsm8k` from data to evaluation: scored in worker processes, resumed, and on the published problems."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from purerl.loop import remaining_steps as steps
from purerl.loop.state import LoopState
from purerl.loop.train import Summary
from purerl.store.rollouts import read_rollouts

from .made import needs_published_problems, records, train, write_problems, write_published_problems

SMALL = (
    "batch_size=4", "rollout.samples_per_prompt=4", "rollout.max_tokens=8", "evaluate.max_tokens=8",
    "trainer.warmup_ratio=0", "reward_workers.num_workers=1", "checkpoint.every=2", "num_threads=1",
)  # fmt: skip


def _settings(chat_run: Summary, data: str, *more: str) -> list[str]:
    return [f"model={chat_run.model}", f"data={data}", *SMALL, *more]


@pytest.fixture(scope="module")
def settings(chat_run: Summary, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _settings(
        chat_run, write_problems(tmp_path_factory.mktemp("gsm8k")), "max_steps=4", "data.validation_fraction=0.3"
    )


@pytest.fixture(scope="module")
def run(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train("gsm8k", tmp_path_factory.mktemp("gsm8k") / "run", *settings)


def test_completions_are_scored_by_their_number(run: Summary) -> None:
    rows = [row for step in (1, 2, 3, 4) for row in read_rollouts(run.directory / "rollouts", step)]
    answers = ["5", "8", "1", "7", "2", "9", "4", "3"]
    assert len(rows) == 64
    for row in rows:
        assert row["prompt"].endswith('as a number after "#### ".<|im_end|>\n<|im_start|>assistant\n')
    numbers = [(row, row["completion"][5:]) for row in rows if re.fullmatch(r"#### \d", row["completion"])]
    assert len(numbers) > 8
    assert [sum(row["reward"]) for row, _ in numbers] == [number == answers[row["example"]] for row, number in numbers]
    assert 0 < sum(sum(row["reward"]) for row in rows) < len(rows), "some answers are correct and some incorrect"
    assert [step["reward/valid_fraction"] for step in records(run.directory)[1:]] == [1, 1, 1, 1]
    assert any(step["policy/grad_norm"] > 0 for step in records(run.directory)[1:])


def test_the_validation_set_is_used_for_evaluation_only(run: Summary) -> None:
    counts = json.loads((run.directory / "data.json").read_text())
    assert counts["validation"] == counts["problems"] == 8 - counts["examples"] > 0
    drawn = {row["example"] for step in (1, 2, 3, 4) for row in read_rollouts(run.directory / "rollouts", step)}
    assert len(drawn) == counts["examples"], "16 draws are more than one pass over the data"
    assert run.before["eval/valid_fraction"] == run.after["eval/valid_fraction"] == 1
    assert run.after["eval/length"] > 1


def test_an_interrupted_run_resumes_with_the_same_metrics(
    run: Summary, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = steps.advance

    def until_step_3(run: Any, state: LoopState, *arguments: Any) -> Any:
        if state.step == 3:
            raise KeyboardInterrupt
        return advance(run, state, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(steps, "advance", until_step_3)
        with pytest.raises(KeyboardInterrupt):
            train("gsm8k", tmp_path / "run", *settings)
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed = train("gsm8k", tmp_path / "run", *settings)
    assert _without_times(resumed) == _without_times(run)


def test_without_an_evaluation_all_problems_are_trained_on(settings: list[str], tmp_path: Path) -> None:
    others = [setting for setting in settings if not setting.startswith(("evaluate.", "data.validation"))]
    summary = train("gsm8k", tmp_path / "run", *others, "evaluate=", "max_steps=1")
    counts = json.loads((summary.directory / "data.json").read_text())
    assert (counts["rows"], counts["examples"], "problems" in counts) == (8, 8, False)
    assert (summary.before, summary.after) == ({}, {})


def _without_times(summary: Summary) -> list[dict[str, float]]:
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in records(summary.directory)]


@needs_published_problems
def test_the_published_problems_are_read(chat_run: Summary, tmp_path: Path) -> None:
    write_published_problems(tmp_path)
    more = (f"test={tmp_path}/test.parquet", "max_steps=2", "rollout.samples_per_prompt=2")
    summary = train("gsm8k", tmp_path / "run", *_settings(chat_run, f"{tmp_path}/train.parquet", *more))
    counts = json.loads((summary.directory / "data.json").read_text())
    assert list(counts.pop("files")) == [str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]
    assert counts.pop("learns_from_rewards")
    assert counts.pop("models")["policy"]["files"]["config.json"]["size"] > 0
    assert counts.pop("accuracy").startswith("a completion is correct if purerl.rewards.math:gsm8k gives at least 1")
    assert counts.pop("mismatch_limit") >= 3 * counts.pop("mismatch_level") > 0  # in 16 bits
    assert counts == {"max_steps": 2, "rows": 12, "examples": 12, "problems": 4, "preset": None}
    assert [record["reward/valid_fraction"] for record in records(summary.directory)[1:]] == [1, 1]
    assert summary.after["eval/valid_fraction"] == 1
