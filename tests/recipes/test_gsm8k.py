"""`gsm8k` from its file to its evaluation: judged in workers, resumed, on problems of ours and on published ones."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from purerl.data.convert import convert
from purerl.loop import train as training
from purerl.loop.run import Run, State
from purerl.loop.train import Summary
from purerl.store.rollouts import read_rollouts
from tests.data.test_convert import PUBLISHED

from .made import lines, train, write_problems

SMALL = (
    "batch_size=4", "rollout.samples_per_prompt=4", "rollout.max_tokens=8", "evaluate.max_tokens=8",
    "trainer.warmup_steps=0",
    "reward_workers.num_workers=1", "checkpoint.every=2", "num_threads=1",
)  # fmt: skip


def _settings(taught: Summary, data: str, *more: str) -> list[str]:
    return [f"model={taught.model}", f"data={data}", *SMALL, *more]


@pytest.fixture(scope="module")
def settings(taught: Summary, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _settings(
        taught, write_problems(tmp_path_factory.mktemp("gsm8k")), "max_steps=4", "data.validation_fraction=0.3"
    )


@pytest.fixture(scope="module")
def done(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return train("gsm8k", tmp_path_factory.mktemp("gsm8k") / "run", *settings)


def test_completions_are_judged_by_their_number(done: Summary) -> None:
    rows = [row for step in (1, 2, 3, 4) for row in read_rollouts(done.directory / "rollouts", step)]
    truths = ["5", "8", "1", "7", "2", "9", "4", "3"]
    assert len(rows) == 64
    for row in rows:
        assert row["prompt"].endswith('as a number after "#### ".<|im_end|>\n<|im_start|>assistant\n')
    answers = [(row, row["completion"][5:]) for row in rows if re.fullmatch(r"#### \d", row["completion"])]
    assert len(answers) > 8
    assert [sum(row["reward"]) for row, answer in answers] == [
        answer == truths[row["example"]] for row, answer in answers
    ]
    assert 0 < sum(sum(row["reward"]) for row in rows) < len(rows), "a model that guesses is right at times"
    assert [step["reward/valid_fraction"] for step in lines(done.directory)[1:]] == [1, 1, 1, 1]
    assert any(step["policy/grad_norm"] > 0 for step in lines(done.directory)[1:])


def test_it_is_evaluated_on_what_is_held_out(done: Summary) -> None:
    counts = json.loads((done.directory / "data.json").read_text())
    assert counts["held_out"] == counts["problems"] == 8 - counts["examples"] > 0
    drawn = {row["example"] for step in (1, 2, 3, 4) for row in read_rollouts(done.directory / "rollouts", step)}
    assert len(drawn) == counts["examples"], "16 draws are more than one pass"
    assert done.before["eval/valid_fraction"] == done.after["eval/valid_fraction"] == 1
    assert done.after["eval/length"] > 1


def test_it_goes_on_where_it_was_left(
    done: Summary, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = training.advance

    def until_the_fourth(run: Run, state: State, *others: Any) -> Any:
        if state.step == 3:
            raise KeyboardInterrupt
        return advance(run, state, *others)

    with monkeypatch.context() as patch:
        patch.setattr(training, "advance", until_the_fourth)
        with pytest.raises(AssertionError, match="the same command goes on"):
            train("gsm8k", tmp_path / "run", *settings)
    assert not (tmp_path / "run" / "summary.json").exists()
    again = train("gsm8k", tmp_path / "run", *settings)
    assert _timeless(again) == _timeless(done)


def _timeless(summary: Summary) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines(summary.directory)]


@pytest.mark.skipif(not (PUBLISHED / "gsm8k").is_dir(), reason="GSM8K is not there: set PURERL_TEST_DATA to its folder")
def test_published_problems_go_through(taught: Summary, tmp_path: Path) -> None:
    for split, count in (("train", 12), ("test", 4)):
        with (PUBLISHED / "gsm8k" / f"{split}.jsonl").open(encoding="utf-8") as file:
            (tmp_path / f"{split}.jsonl").write_text("".join(islice(file, count)), encoding="utf-8")
        convert("gsm8k", str(tmp_path / f"{split}.jsonl"), str(tmp_path / f"{split}.parquet"))
    more = (f"test={tmp_path}/test.parquet", "max_steps=2", "rollout.samples_per_prompt=2")
    summary = train("gsm8k", tmp_path / "run", *_settings(taught, f"{tmp_path}/train.parquet", *more))
    counts = json.loads((summary.directory / "data.json").read_text())
    assert list(counts.pop("files")) == [str(tmp_path / "train.parquet"), str(tmp_path / "test.parquet")]
    assert counts == {"rows": 12, "examples": 12, "problems": 4}
    assert [line["reward/valid_fraction"] for line in lines(summary.directory)[1:]] == [1, 1]
    assert summary.after["eval/valid_fraction"] == 1
