"""The section `rollout`: invalid values, and settings that have no effect with an algorithm."""

from __future__ import annotations

import pytest

from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.errors import ConfigError
from purerl.recipes.addition import addition


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rollout.temperature=inf", "rollout.temperature\n  got:  inf\n  need: from 0.0001 to 10000\n"),
        ("rollout.temperature=nan", "rollout.temperature\n  got:  nan\n  need: from 0.0001 to 10000\n"),
        ("rollout.temperature=0", "rollout.temperature\n  got:  0.0\n  need: from 0.0001 to 10000\n  do:   only eval"),
        ('rollout.stop_strings=[""]', "rollout.stop_strings\n  got:  an empty string\n  need: strings of at least one"),
        ("rollout.samples_per_prompt=0", "rollout.samples_per_prompt\n  got:  0\n  need: an integer from 1 to 65536"),
        ("rollout.max_staleness=-1", "rollout.max_staleness\n  got:  -1\n  need: an integer, at least 0"),
        ("rollout.order=random", "rollout.order\n"),
        ("rollout.stall_timeout=0", "rollout.stall_timeout\n  got:  0.0\n  need: a finite number above 0"),
        ("rollout.order=finished", "rollout.order has no effect\n"),
        ("rollout.num_extra_groups=1", "rollout.num_extra_groups has no effect\n"),
        ("rollout.background=true", "rollout.background has no effect\n"),
        ("rollout.max_resample_rounds=-1", "rollout.max_resample_rounds\n  got:  -1\n  need: an integer, at least 0"),
        ("rollout.overlong={buffer = 0}", "rollout.overlong.buffer\n  got:  0\n  need: an integer, at least 1"),
    ],
)
def test_invalid_values_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(addition(), [setting])
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("algorithm.kind=grpo", "rollout.max_resample_rounds=1"),
            "rollout.max_resample_rounds has no effect\n  got:  1\n  need: an algorithm that drops groups; grpo keeps ",
        ),
        (
            ("algorithm.kind=grpo", "rollout.gen_batch_size=200"),
            "rollout.gen_batch_size has no effect\n  got:  200\n  need: an algorithm that drops groups; grpo keeps all",
        ),
        (
            ("rollout.gen_batch_size=40", "rollout.max_resample_rounds=2"),
            (
                "rollout.gen_batch_size\n  got:  40 prompts in each of at most 3 rounds\n"
                "  need: at least 128 prompts, which is batch_size\n  do:   raise it, or rollout.max_resample_rounds"
            ),
        ),
        (
            ("algorithm.kind=grpo", "rollout.filter_metric=acc"),
            (
                "rollout.filter_metric has no effect\n  got:  'acc'\n"
                "  need: an algorithm that drops groups; grpo keeps all\n"
                "  do:   add the modifier group_filter, or leave it out"
            ),
        ),
        (
            ("algorithm.kind=gdpo", "rollout.overlong={buffer = 1}"),
            (
                "rollout.overlong has no effect\n  got:  Overlong(buffer=1, factor=1.0)\n"
                "  need: an algorithm that reads the reward; gdpo does not"
            ),
        ),
    ],
)
def test_settings_without_effect_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(apply(addition(), settings))
    assert str(error.value).startswith(message)


def test_settings_with_an_effect_are_accepted() -> None:
    check(
        apply(addition(), ["rollout.gen_batch_size=64", "rollout.max_resample_rounds=1", "rollout.filter_metric=acc"])
    )
    settings = ["rollout.max_resample_rounds=2", "rollout.overlong.buffer=2", "rollout.max_staleness=3"]
    stale = ["rollout.order=finished", "rollout.num_extra_groups=8", "rollout.background=true", "algorithm.bypass=true"]
    check(apply(addition(), [*settings, *stale]))
