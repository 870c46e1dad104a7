"""Records of steps: metrics.jsonl is JSON also if a metric is NaN, and everything that reads it copes with that."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from purerl.config.schema import StopWhen
from purerl.loop import measure, step
from purerl.loop.train import Summary, train
from purerl.report.read import read_run
from purerl.system.strict_json import to_json

from .rewards import first_is_even
from .runs import records, train_until
from .small import fake


@pytest.fixture
def diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some metrics be NaN or infinite in every step and evaluation."""

    def means(metrics: Any) -> dict[str, float]:
        return original_means(metrics) | {"policy/loss/policy": math.nan, "policy/approx_kl": math.inf}

    def evaluation_metrics(*args: Any) -> dict[str, float]:
        return original_metrics(*args) | {"eval/reward": math.nan}

    original_means, original_metrics = step.means, measure.metrics
    monkeypatch.setattr(step, "means", means)
    monkeypatch.setattr(measure, "metrics", evaluation_metrics)


def _strict(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, by a reader that accepts no NaN."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def _train(directory: Path, **changes: Any) -> Summary:
    return train(fake(max_steps=2, **changes), rewards=[first_is_even], directory=directory)


@pytest.mark.usefixtures("diverged")
def test_metric_that_is_nan_is_null_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        summary = _train(tmp_path / "run")
    lines = _strict(tmp_path / "run" / "metrics.jsonl")
    assert [line["policy/loss/policy"] for line in lines[1:]] == [None, None]
    assert lines[0]["eval/reward"] is None
    assert caplog.text.count("the metric policy/loss/policy is nan") == 1
    assert caplog.text.count("the metric policy/approx_kl is inf") == 1
    assert "eval/reward" not in summary.after
    assert "eval/accuracy" in summary.after
    _strict_document(tmp_path / "run" / "summary.json")
    run = read_run(tmp_path / "run", max_records=100)
    assert run["last_values"]["policy/loss/policy"] == "not finite"
    assert run["metrics"]["policy/loss/policy"] == [None, None, None]


def _strict_document(path: Path) -> None:
    json.loads(path.read_text(), parse_constant=pytest.fail)


@pytest.mark.usefixtures("diverged")
@pytest.mark.parametrize("metric", ["policy/approx_kl", "policy/loss/policy"])
def test_metric_without_a_value_does_not_stop_the_run_and_is_a_metric_of_it(metric: str, tmp_path: Path) -> None:
    stop_when = StopWhen(metric=metric, at_least=0.0)
    assert _train(tmp_path / "run", stop_when=stop_when).steps == 2


@pytest.mark.usefixtures("diverged")
def test_run_with_a_metric_without_a_value_is_resumed(tmp_path: Path) -> None:
    config = fake(max_steps=2, stop_when=StopWhen(metric="eval/reward", at_least=0.0))
    train_until(1, config, rewards=[first_is_even], directory=tmp_path / "run")
    assert train(config, rewards=[first_is_even], directory=tmp_path / "run").steps == 2
    assert [record["eval/reward"] for record in records(tmp_path / "run") if "eval/reward" in record] == [None] * 2


def test_to_json_keeps_other_values_and_options() -> None:
    value = {"a": (1, 2.5, "NaN", None, True), "b": {"c": [math.nan, -math.inf]}}
    assert to_json(value) == '{"a": [1, 2.5, "NaN", null, true], "b": {"c": [null, null]}}'
    assert to_json([1], indent=2) == "[\n  1\n]"
