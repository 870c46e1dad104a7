"""Every setting of every algorithm has an effect on training."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
from attrs import frozen
from test_laws import MODULES

from purerl.algos import grpo, gspo
from purerl.algos.algebra import Algorithm
from purerl.algos.parts.settings import choice, flag
from purerl.testing import check_settings


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_every_setting_has_an_effect(module: ModuleType):
    check_settings(module)


@frozen
class UnusedSettingConfig:
    """A Config with a setting, `dual_clip`, that the algorithm does not use."""

    clip_high: float = 0.2
    dual_clip: float = 3.0


def test_unused_setting_is_detected():
    module = SimpleNamespace(
        __name__="unused_setting",
        Config=UnusedSettingConfig,
        algorithm=lambda c: grpo.algorithm(grpo.Config(clip_high=c.clip_high)),
    )
    with pytest.raises(AssertionError, match="unused_setting: the setting 'dual_clip' has no effect on training"):
        check_settings(module, batches=5)


@frozen
class UnusedChoicesConfig:
    """A Config with settings that are no numbers, of which the algorithm uses the first."""

    ratio: str = choice("the ratio", ("token", "sequence"), "token")
    dual_clip: bool = flag("bound the ratio")


def test_unused_setting_that_is_no_number_is_detected():
    algorithms = {"token": grpo.algorithm(), "sequence": gspo.algorithm()}
    module = SimpleNamespace(
        __name__="unused_choices", Config=UnusedChoicesConfig, algorithm=lambda c: algorithms[c.ratio]
    )
    with pytest.raises(AssertionError, match="unused_choices: the setting 'dual_clip' has no effect on training"):
        check_settings(module, batches=5)


@frozen
class MetricOnlyConfig:
    """A Config with a setting that changes a metric, but not the loss."""

    clip_high: float = 0.2


def metric_only(config: MetricOnlyConfig) -> Algorithm:
    algorithm, configured = grpo.algorithm(), grpo.algorithm(grpo.Config(clip_high=config.clip_high))
    (policy,), (configured_policy,) = algorithm.objectives, configured.objectives
    return algorithm._replace(objectives=(policy._replace(metrics=configured_policy.metrics),))


def test_setting_that_changes_only_a_metric_is_detected():
    module = SimpleNamespace(__name__="metric_only", Config=MetricOnlyConfig, algorithm=metric_only)
    with pytest.raises(AssertionError, match="metric_only: the setting 'clip_high' has no effect on training"):
        check_settings(module, batches=5)
