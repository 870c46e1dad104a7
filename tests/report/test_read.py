"""Run directories become plain data: bounded, whatever state they are in, without being touched."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from purerl.errors import DataError
from purerl.report.read import checked, labels, read_run
from tests.report.made import hand_made, plain_metrics


def test_what_a_run_is_and_how_far(tmp_path: Path) -> None:
    found = read_run(hand_made(tmp_path / "run", steps=4, algorithm="dapo"), lines=100)
    assert (found["done"], found["steps"], found["finished"]) == (4, 4, False)
    assert (found["config"]["algorithm.kind"], found["config"]["rewards"]) == ("dapo", '["exact"]')
    assert (found["first"]["reward/mean"], found["last"]["reward/mean"]) == (0.1, 0.4)
    assert found["metrics"]["reward/mean"] == [None, 0.1, 0.2, 0.3, 0.4]
    assert found["axes"] == {"step": [0, 1, 2, 3, 4], "seconds": [0, 2, 4, 6, 8], "tokens": [0, 100, 200, 300, 400]}
    assert found["seconds"] == {"generate": 6, "update": 1, "other": 1}


def test_evaluation_and_storing_take_time_beside_the_steps(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=2, metrics=lambda step: plain_metrics(step) | {"time/evaluate": 3.0})
    found = read_run(run, lines=100)
    assert found["axes"]["seconds"] == [0, 5, 10]
    assert found["seconds"] == {"generate": 3, "update": 0.5, "other": 0.5, "evaluate": 6}


def test_long_runs_are_thinned_but_keep_their_ends_and_evaluations(tmp_path: Path) -> None:
    evaluated = {20: 0.5, 63: 0.75}

    def metrics(step: int) -> dict[str, float]:
        return plain_metrics(step) | ({"eval/accuracy": evaluated[step]} if step in evaluated else {})

    run = hand_made(tmp_path / "run", steps=80, metrics=metrics)
    found = read_run(run, lines=10)
    assert found["lines"] == {"shown": 12, "all": 81}
    assert {0, 20, 63, 80} <= set(found["axes"]["step"])
    assert [value for value in found["metrics"]["eval/accuracy"] if value is not None] == [0.25, 0.5, 0.75]
    assert found["axes"]["seconds"][-1] == 160, "time passes at the steps that are left out too"


def test_what_json_cannot_say_is_said_as_text(tmp_path: Path) -> None:
    run = hand_made(
        tmp_path / "run", steps=1, metrics=lambda step: {"policy/approx_kl": math.inf, "policy/loss": math.nan}
    )
    found = read_run(run, lines=9)
    assert (found["last"]["policy/approx_kl"], found["last"]["policy/loss"]) == ("inf", "nan")
    json.dumps(found, allow_nan=False)


def test_a_line_that_is_half_written_does_not_count(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=3)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/me')
    assert read_run(run, lines=9)["done"] == 3


@pytest.mark.parametrize("line", ['{"step": 2, "rew', "[]", "{}", '{"step": null}', "\udcff"])
def test_a_line_that_is_broken_is_named(tmp_path: Path, line: str) -> None:
    run = hand_made(tmp_path / "run", steps=3)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[3:], ""]), errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        checked([run])
    assert str(caught.value).splitlines() == [
        f"line 3 of {str(run / 'metrics.jsonl')!r} is broken",
        f"  got:  {line + chr(10)!r}".replace("\\udcff", "\ufffd"),
        "  need: a JSON object with a step",
        "  do:   mend or remove the line",
    ]


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("steps = ", "need: TOML"),
        ("\udcff = 1", "need: TOML"),
        ("name = 'x'", "got:  None"),
        ("max_steps = 'x'", "got:  'x'"),
    ],
)
def test_a_configuration_that_is_broken_is_named(tmp_path: Path, text: str, need: str) -> None:
    run = hand_made(tmp_path / "run")
    (run / "config.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        read_run(run, lines=9)
    assert str(run / "config.toml") in str(caught.value)
    assert need in str(caught.value)


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run", steps=3)
    (run / "summary.json").write_text("{}")
    assert read_run(run, lines=9)["finished"]


def test_runs_are_told_apart_by_as_little_of_their_paths_as_does(tmp_path: Path) -> None:
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert labels([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ["x/run", "y/run"]
    assert labels([tmp_path / "run", tmp_path / "deep" / "run"]) == [f"{tmp_path.name}/run", "deep/run"]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        checked([tmp_path / "nothing"])
    assert str(caught.value).splitlines() == [
        f"{str(tmp_path / 'nothing')!r} is no run",
        "  got:  no config.toml in it",
        "  need: a run directory: one with a config.toml",
    ]


def test_the_folder_of_runs_is_refused_with_those_in_it(tmp_path: Path) -> None:
    one, two = hand_made(tmp_path / "one"), hand_made(tmp_path / "two")
    with pytest.raises(DataError, match="is no run") as caught:
        checked([tmp_path])
    assert str(caught.value).endswith(f"do:   did you mean {one} {two}?")


def test_a_run_that_has_not_begun_is_refused(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        checked([run])
    assert str(caught.value).splitlines() == [
        f"the run in {str(run)!r} has no metrics yet",
        "  do:   wait for its first evaluation or step",
    ]


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(DataError, match="is given twice"):
        checked([run, tmp_path / "link"])
