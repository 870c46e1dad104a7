"""Settings that may be infinite: in Python, in TOML and on the command line, with the result of a very large number."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import attrs
import pytest

from purerl.algos import grpo, rloo
from purerl.algos.modifiers import advantage_clip, dual_clip, kl_loss
from purerl.composition import with_modifiers
from purerl.config.overrides import apply
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, from_dict
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of, names
from purerl.recipes.addition import addition
from purerl.testing import example_batch, fields_of, random_layout
from purerl.testing.outcome import find_difference, run

INF, HUGE = math.inf, 1e200
GROUPS = ("algorithm", "modifier")
CONFIGS = [find(group, name).Config for group in GROUPS for name in names(group)]
INFINITE = [
    pytest.param(config, field.name, id=f"{config.__module__.removeprefix('purerl.algos.')}.{field.name}")
    for config in CONFIGS
    for field in attrs.fields(config)
    if "; inf: " in field.metadata.get("help", "")
]
TARGET = {"max_coef": {"target": 1.0}}
BASES = {"clipped_surrogate": rloo}


def algorithm_of(config: Any) -> Any:
    kind = kind_of(config)
    if kind in names("algorithm"):
        return find("algorithm", kind).algorithm(config)
    return with_modifiers(BASES.get(kind, grpo).algorithm(), config)


def test_bounds_may_be_infinite():
    settings = {param.id for param in INFINITE}
    assert {
        "grpo.clip_high",
        "ppo.value_clip",
        "gmpo.log_clip_low",
        "modifiers.importance_weight.max_ratio",
    } <= settings


@pytest.mark.parametrize(("config", "name"), INFINITE)
def test_infinity_gives_what_a_very_large_number_gives(config: type, name: str):
    algorithms = [algorithm_of(config(**{name: value}, **TARGET.get(name, {}))) for value in (INF, HUGE)]
    for seed in range(4):
        batch = example_batch(fields_of(algorithms[0]), random_layout(seed), seed=seed)
        assert find_difference(*(run(algorithm, batch) for algorithm in algorithms)) is None


@pytest.mark.parametrize(("config", "name"), INFINITE)
def test_infinity_is_the_same_on_the_command_line_and_in_toml(config: type, name: str):
    kind = kind_of(config())
    keys = {"algorithm": ["algorithm.kind=" + kind], "modifier": ["algorithm.kind=rloo", f"algorithm.{kind}=true"]}
    group = "algorithm" if kind in names("algorithm") else "modifier"
    key = f"algorithm.{name}" if group == "algorithm" else f"algorithm.{kind}.{name}"
    changed = apply(
        addition(), [*keys[group], *([f"algorithm.{kind}.target=1"] if name in TARGET else []), f"{key}=inf"]
    )
    value = changed.algorithm.base if group == "algorithm" else changed.algorithm.modifiers[0]
    assert getattr(value, name) == INF
    assert from_dict(RunConfig, tomllib.loads(dumps(changed))) == changed


@pytest.mark.parametrize(
    ("config", "settings", "need"),
    [
        (grpo.Config, {"clip_low": INF}, "a number at least 0 and at most 1"),
        (grpo.Config, {"clip_high": -INF}, "a number at least 0"),
        (grpo.Config, {"clip_high": math.nan}, "a number at least 0"),
        (kl_loss.Config, {"coef": INF}, "a number at least 0, and finite"),
        (dual_clip.Config, {"ratio": INF}, "a number above 1, and finite"),
        (advantage_clip.Config, {"bound": INF}, "a number above 0, and finite"),
    ],
)
def test_other_values_that_are_not_finite_are_refused(config: type, settings: dict[str, float], need: str):
    with pytest.raises(ConfigError) as error:
        config(**settings)
    assert f"\n  need: {need}\n" in str(error.value)
