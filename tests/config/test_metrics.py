"""Metrics that settings name: unknown ones are refused before a run, with the nearest name."""

from __future__ import annotations

from typing import Any

import pytest

from purerl.config.check import check_metrics, check_settings, named_metrics
from purerl.config.metrics import check_names, metric_notes
from purerl.config.requirements import requirements_of
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.monitoring.metric_meanings import documented_names
from purerl.recipes import resolve


def _config(*settings: str, recipe: str = "addition") -> RunConfig:
    return resolve(recipe, settings)


def _with(metric: str, *settings: str, key: str = "stop_when.metric", **options: Any) -> RunConfig:
    more = ["stop_when.at_least=1"] if key.startswith("stop_when") else []
    return _config(f"{key}={metric}", *more, *settings, **options)


def _refusal(config: RunConfig, *, may_log: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        check_names(named_metrics(config), requirements_of(config).algorithm, may_log=may_log)
    return str(caught.value)


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        ("eval/acuracy", "did you mean 'eval/accuracy'?"),
        ("policy/entrpy", "did you mean 'policy/entropy'?"),
        ("rollout/lenght", "did you mean 'rollout/length'?"),
        ("reward_mean", "did you mean 'reward/mean'?"),
        ("policy/loss/polcy", "did you mean 'policy/loss/policy'?"),
        ("time/updte", "did you mean 'time/update'?"),
        ("eval/math/accuracy", "did you mean 'eval/accuracy'?"),
        ("mine", "docs/reference/metrics.md lists all metrics"),
    ],
)
@pytest.mark.parametrize("key", ["stop_when.metric", "checkpoint.best"])
def test_an_unknown_metric_has_the_nearest_name(key: str, metric: str, remedy: str) -> None:
    message = _refusal(_with(metric, key=key))
    assert message == f"{key}\n  got:  {metric}\n  need: a metric of the run\n  do:   {remedy}"


def test_metrics_of_the_documentation_and_of_the_parts_of_a_run_are_known() -> None:
    data = 'evaluate.data={math="m.jsonl", code="c.jsonl"}'
    names = ["eval/math/accuracy", "eval/code/pass@4", "policy/loss/policy", "eval/math/reward/exact_match"]
    names += ["logged/anything", "eval/logged/x", "reward/made_by_a_function", "eval/reward", *documented_names()]
    skipped = ("validation/", "callback/")
    for name in (name for name in names if not name.startswith(skipped)):
        config = _with(name, data, "data.validation_fraction=0")
        check_names(named_metrics(config), requirements_of(config).algorithm, may_log=False)
    assert "did you mean 'eval/math/accuracy'?" in _refusal(_with("eval/mth/accuracy", data))


def test_a_metric_of_a_critic_is_near_that_of_the_policy() -> None:
    assert "did you mean 'critic/grad_norm'?" in _refusal(_with("critic/grad_nrm", "algorithm=ppo"))
    assert "did you mean 'critic/grad_norm'" not in _refusal(_with("critic/grad_nrm"))


def test_a_name_that_a_callback_may_log_is_checked_in_the_run() -> None:
    check_settings(_with("mine/metric"))  # before callbacks are known
    config = _with("policy/entrpy")
    check_names(named_metrics(config), requirements_of(config).algorithm, may_log=True)
    assert "eval/accuracy" in _refusal(_with("eval/acuracy"), may_log=True)  # no callback may log it


def test_metrics_of_an_initial_run_are_checked_too() -> None:
    """No callback logs metrics in it."""
    config = _config("initial_run.checkpoint.best=policy/los/nll")
    needs = {"": requirements_of(config), "initial_run": requirements_of(config.initial_run)}
    with pytest.raises(
        ConfigError, match=r"^initial_run\.checkpoint\.best\n  got:  policy/los/nll\n(?s:.*)policy/loss/nll"
    ):
        check_metrics(config, needs, may_log=True)


def test_an_environment_may_have_metrics_of_its_own() -> None:
    config = _with("environment/moves", recipe="calculator")
    check_names(named_metrics(config), requirements_of(config).algorithm, may_log=False)


def test_a_reward_that_a_function_may_return_has_a_note_with_the_nearest_name() -> None:
    rewards = 'rewards=["my.rewards:correct", {function="my.rewards:format_ok", weight=0.1}]'
    end = "unless a reward function returns this name; did you mean 'correct'?"
    for key, metric in {"stop_when.metric": "reward/corect", "checkpoint.best": "eval/reward/corect"}.items():
        [note] = metric_notes(named_metrics(_with(metric, rewards, key=key)))
        assert note == f"{key}: no reward of the run is called 'corect', {end}"
    [note] = metric_notes(named_metrics(_config("rollout.filter_metric=corect", rewards)))
    assert note == f"rollout.filter_metric: no reward of the run is called 'corect', {end}"
    [note] = metric_notes(named_metrics(_config("rollout.filter_metric=other", rewards)))
    assert note.endswith("this name; known are correct, format_ok")
    assert metric_notes(named_metrics(_with("eval/reward/format_ok", rewards, "rollout.filter_metric=correct"))) == []
