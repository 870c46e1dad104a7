"""Every setting of every algorithm has an effect on what is learned."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
from attrs import frozen
from test_laws import MODULES

from purerl.algos import grpo
from purerl.algos.algebra import Algorithm
from purerl.testing import check_settings


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_every_setting_has_an_effect(module: ModuleType):
    check_settings(module)


@frozen
class Forgetful:
    """A Config with a setting that is never handed on."""

    clip_high: float = 0.2
    dual_clip: float = 3.0


def test_a_setting_that_is_never_handed_on_is_found():
    module = SimpleNamespace(
        __name__="forgetful", Config=Forgetful, algorithm=lambda c: grpo.algorithm(grpo.Config(clip_high=c.clip_high))
    )
    with pytest.raises(AssertionError, match="forgetful: the setting 'dual_clip' has no effect"):
        check_settings(module, batches=5)


@frozen
class Measured:
    """A Config with a setting that reaches a metric, and no loss."""

    clip_high: float = 0.2


def measured(config: Measured) -> Algorithm:
    algorithm, other = grpo.algorithm(), grpo.algorithm(grpo.Config(clip_high=config.clip_high))
    (policy,), (watched,) = algorithm.objectives, other.objectives
    return algorithm._replace(objectives=(policy._replace(metrics=watched.metrics),))


def test_a_setting_that_reaches_only_a_metric_is_found():
    module = SimpleNamespace(__name__="measured", Config=Measured, algorithm=measured)
    with pytest.raises(AssertionError, match="measured: the setting 'clip_high' has no effect on what is learned"):
        check_settings(module, batches=5)
