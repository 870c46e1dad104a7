"""Presets: compositions that compute what other libraries compute."""

from __future__ import annotations

import attrs
import pytest

from purerl.anatomy import composition_named
from purerl.composition import build_algorithm
from purerl.config.check import check
from purerl.errors import ConfigError
from purerl.plugins import kind_of
from purerl.presets import presets
from purerl.recipes import resolve


@pytest.mark.parametrize("name", presets())
def test_preset_is_an_algorithm_with_modifiers(name: str) -> None:
    preset = presets()[name]
    assert preset.checked in ("executed", "read")
    assert preset.summary.endswith(".")
    assert all(difference.endswith(".") for difference in preset.differences)
    build_algorithm(composition_named(name))


def test_preset_is_the_kind_of_an_algorithm_and_its_settings_can_be_changed() -> None:
    config = resolve("addition", ["algorithm.kind=grpo@verl"])
    check(config)
    assert [kind_of(config.algorithm.base), *map(kind_of, config.algorithm.modifiers)] == [
        "grpo",
        "advantage_scale",
        "reduction",
        "dual_clip",
    ]
    changed = resolve(
        "addition",
        ["algorithm.kind=grpo@verl", "algorithm.clip_high=0.28", "algorithm.dual_clip=10", "algorithm.kl_loss=0.01"],
    )
    assert changed.algorithm.base.clip_high == 0.28
    values = {kind_of(modifier): attrs.asdict(modifier) for modifier in changed.algorithm.modifiers}
    assert values["dual_clip"] == {"ratio": 10.0}
    assert values["kl_loss"]["coef"] == 0.01
    assert list(values) == ["advantage_scale", "reduction", "dual_clip", "kl_loss"]


def test_modifier_of_a_preset_can_be_removed() -> None:
    config = resolve("addition", ["algorithm.kind=grpo@verl", "algorithm.dual_clip=false"])
    assert [kind_of(modifier) for modifier in config.algorithm.modifiers] == ["advantage_scale", "reduction"]


def test_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"^algorithm.kind: unknown preset 'grpo@verll'\n  do:   did you mean 'grpo@"):
        resolve("addition", ["algorithm.kind=grpo@verll"])
