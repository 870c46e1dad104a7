"""Settings that have no effect, or that name what the run has not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purerl.config import check as module
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.recipes import resolve

SFT = ["algorithm.kind=sft", "rollout="]


def _stop(metric: str) -> list[str]:
    return ["stop_when.at_least=1", f"stop_when.metric={metric}"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (_stop("evl/accuracy"), "stop_when.metric\n  got:  evl/accuracy\n.*'eval/accuracy'"),
        (_stop("accuracy"), "stop_when.metric\n.*'eval/accuracy'"),
        (_stop("reward/men"), "stop_when.metric\n.*'reward/mean'"),
        (_stop("reward/exact_mach"), "stop_when.metric\n.*'reward/exact_match'"),
        (_stop("policy/entrpy"), "stop_when.metric\n.*'policy/entropy'"),
        (_stop("rollout/nothing"), "stop_when.metric\n  got:  rollout/nothing\n  need: a metric that the run has"),
        (_stop("policy/"), "stop_when.metric\n"),
        ([*_stop("reward/mean"), *SFT], "stop_when.metric\n"),
        (
            ["stop_when.metric=eval/accuracy", "stop_when.at_least=nan"],
            "stop_when.at_least\n  got:  nan\n  need: a finite number",
        ),
        (['rewards=[{function="purerl.rewards.exact:exact_match", weight=0}]'], "rewards.weight\n  got:  0 for each"),
        (
            ["model={here}", "model.revision=v2"],
            "model.revision has no effect\n  got:  'v2'\n  need: a name on",
        ),
        (["model.revision=v2"], "model.revision has no effect\n"),
        (
            ["data.validation_fraction=0.1", "evaluate="],
            "data.validation_fraction has no effect\n  got:  0.1\n  need: an evaluation",
        ),
    ],
)
def test_what_has_no_effect_is_refused(settings: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        check(resolve("addition", [one.replace("{here}", str(tmp_path)) for one in settings]))
    assert re.match(message, str(caught.value), re.DOTALL), str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        _stop("reward/mean"),
        _stop("reward/exact_match"),
        _stop("reward/a_part_of_its_own"),
        _stop("policy/loss/policy"),
        _stop("rollout/truncated"),
        _stop("eval/accuracy_low"),
        _stop("step"),
        ["model=some/name", "model.revision=v2"],
        ['rewards=[{function="purerl.rewards.exact:exact_match", weight=0}]', *SFT],
    ],
)
def test_what_has_one_is_not(settings: list[str]) -> None:
    check(resolve("addition", settings))


def test_the_known_metrics_are_those_that_are_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = {name for line in text.splitlines() if line.startswith("| `") for name in re.findall("`([^`]+)`", line)}
    found = {name.rpartition("/")[2] for name in named if re.fullmatch(r"(policy|critic|reward_model)/\w+", name)}
    assert {*module._LEARNED} == found
    assert {f"time/{name}" for name in module._TIMED} == {name for name in named if name.startswith("time/")}
