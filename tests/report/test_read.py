"""Reading of run directories: bounded size, any state of the run, and no changes to its files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from purerl.errors import DataError
from purerl.report.read import check_runs, read_run, run_labels
from purerl.store.code import record_code
from tests.report.sample_runs import make_metrics, make_run


def test_run_has_progress_settings_metrics_and_times(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", steps=4, algorithm="dapo"), max_records=100)
    assert (run["last_step"], run["max_steps"], run["finished"]) == (4, 4, False)
    assert (run["config"]["algorithm.kind"], run["config"]["rewards"]) == ("dapo", '["exact"]')
    assert (run["first_values"]["reward/mean"], run["last_values"]["reward/mean"]) == (0.1, 0.4)
    assert run["metrics"]["reward/mean"] == [None, 0.1, 0.2, 0.3, 0.4]
    assert run["axes"] == {"step": [0, 1, 2, 3, 4], "seconds": [0, 2, 4, 6, 8], "tokens": [0, 100, 200, 300, 400]}
    assert run["phase_seconds"] == {"generate": 6, "update": 1, "other": 1}


def test_run_has_its_warnings_with_their_last_step(tmp_path: Path) -> None:
    def metrics(step: int) -> dict[str, float]:
        return make_metrics(step) | {"policy/learning_rate": float(step > 6)}

    run = make_run(tmp_path / "run", steps=20, metrics=metrics)
    [warning] = read_run(run, max_records=3)["warnings"]
    assert (warning["name"], warning["step"], warning["end"]) == ("zero_learning_rate", 5, 16)
    assert warning["text"] == "the learning rate was 0 in the last 5 steps"
    assert {"cause", "do"} < set(warning)
    [present] = read_run(make_run(tmp_path / "short", steps=8, metrics=metrics), max_records=3)["warnings"]
    assert present["end"] is None
    assert read_run(make_run(tmp_path / "good", steps=20), max_records=3)["warnings"] == []


def test_evaluation_time_is_added_to_the_time_of_the_steps(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=2, metrics=lambda step: make_metrics(step) | {"time/evaluate": 3.0})
    run = read_run(path, max_records=100)
    assert run["axes"]["seconds"] == [0, 5, 10]
    assert run["phase_seconds"] == {"generate": 3, "update": 0.5, "other": 0.5, "evaluate": 6}


def test_sampling_that_continues_while_the_trainer_trains_is_no_phase_of_the_step(tmp_path: Path) -> None:
    times = {"time/rollout": 0.5, "time/generate": 1.75, "time/reward": 0.25, "time/trainer_idle_fraction": 0.25}
    run = make_run(tmp_path / "run", steps=2, metrics=lambda step: make_metrics(step) | times)
    assert read_run(run, max_records=9)["phase_seconds"] == {"rollout": 1, "update": 0.5, "other": 2.5}


def test_long_run_keeps_first_and_last_record_and_evaluations(tmp_path: Path) -> None:
    accuracies = {20: 0.5, 63: 0.75}

    def metrics(step: int) -> dict[str, float]:
        return make_metrics(step) | ({"eval/accuracy": accuracies[step]} if step in accuracies else {})

    run = read_run(make_run(tmp_path / "run", steps=80, metrics=metrics), max_records=10)
    assert run["records"] == {"shown": 12, "total": 81}
    assert {0, 20, 63, 80} <= set(run["axes"]["step"])
    assert [value for value in run["metrics"]["eval/accuracy"] if value is not None] == [0.25, 0.5, 0.75]
    assert run["axes"]["seconds"][-1] == 160, "the time of omitted steps is counted"


def test_non_finite_values_become_strings(tmp_path: Path) -> None:
    path = make_run(
        tmp_path / "run", steps=1, metrics=lambda step: {"policy/approx_kl": math.inf, "policy/loss": math.nan}
    )
    run = read_run(path, max_records=9)
    assert (run["last_values"]["policy/approx_kl"], run["last_values"]["policy/loss"]) == ("inf", "nan")
    json.dumps(run, allow_nan=False)


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=3)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/me')
    assert read_run(path, max_records=9)["last_step"] == 3


@pytest.mark.parametrize("line", ['{"step": 2, "rew', "[]", "{}", '{"step": null}', "\udcff"])
def test_error_names_a_broken_line(tmp_path: Path, line: str) -> None:
    path = make_run(tmp_path / "run", steps=3)
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[3:], ""]), errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        check_runs([path])
    assert str(caught.value).splitlines() == [
        f"line 3 of {str(path / 'metrics.jsonl')!r} is broken",
        f"  got:  {line + chr(10)!r}".replace("\\udcff", "\ufffd"),
        "  need: a JSON object with a step",
        "  do:   fix or remove the line",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps = ", "need: valid TOML"),
        ("\udcff = 1", "need: valid TOML"),
        ("name = 'x'", "got:  None"),
        ("max_steps = 'x'", "got:  'x'"),
    ],
)
def test_error_names_a_broken_configuration(tmp_path: Path, text: str, expected: str) -> None:
    path = make_run(tmp_path / "run")
    (path / "config.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        read_run(path, max_records=9)
    assert str(path / "config.toml") in str(caught.value)
    assert expected in str(caught.value)


def test_run_with_a_summary_is_finished(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=3)
    (path / "summary.json").write_text("{}")
    assert read_run(path, max_records=9)["finished"]


def test_labels_are_the_shortest_distinct_path_ends(tmp_path: Path) -> None:
    assert run_labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert run_labels([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ["x/run", "y/run"]
    assert run_labels([tmp_path / "run", tmp_path / "deep" / "run"]) == [f"{tmp_path.name}/run", "deep/run"]


def test_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check_runs([tmp_path / "nothing"])
    assert str(caught.value).splitlines() == [
        f"{str(tmp_path / 'nothing')!r} is not a run directory",
        "  got:  no config.toml in it",
        "  need: a directory that purerl train has written",
        "  do:   give the directory of a run, such as runs/NAME",
    ]


def test_error_for_a_directory_of_runs_suggests_the_runs(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second")
    with pytest.raises(DataError, match="is not a run directory") as caught:
        check_runs([tmp_path])
    assert str(caught.value).endswith(f"do:   did you mean {first} {second}?")


def test_run_without_metrics_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / "metrics.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        check_runs([path])
    assert str(caught.value).splitlines() == [
        f"run {str(path)!r} has no metrics yet",
        "  need: at least one finished step or evaluation",
        "  do:   wait until the first one is finished",
    ]


def test_same_run_twice_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(DataError, match="is given twice"):
        check_runs([path, tmp_path / "link"])


@pytest.mark.parametrize("value", ['"x"', "[1]", '{"a": 1}'])
def test_metric_that_is_not_a_number_is_refused_with_its_line(value: str, tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", steps=1)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 2, "time/step": {value}}}\n')
    with pytest.raises(DataError, match=r"line 3 of .*metrics.jsonl'\n  got:  time/step: "):
        read_run(path, max_records=10)


def test_a_run_of_a_preset_has_its_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert read_run(run, max_records=9)["preset"] is None
    (run / "data.json").write_text('{"preset": "grpo@trl"}')
    assert read_run(run, max_records=9)["preset"] == "grpo@trl"


def test_changed_code_has_the_step_and_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    assert read_run(run, max_records=9)["code_changes"] == []
    for digest, step in (("a", 0), ("b", 2)):
        record_code(run, {"reward.py": digest}, step)
    assert read_run(run, max_records=9)["code_changes"] == [{"step": 2, "text": "edited: reward.py"}]
