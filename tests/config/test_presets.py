"""Presets: compositions that compute what other libraries compute."""

from __future__ import annotations

import attrs
import pytest

from purerl.adapters.frameworks.compose import compose
from purerl.algos.modifiers import importance_weight, kl_loss
from purerl.composition import build_algorithm
from purerl.config.check import check
from purerl.config.presets import presets
from purerl.errors import ConfigError
from purerl.explain.algorithm import composition_named
from purerl.plugins import find, kind_of
from purerl.recipes import resolve


@pytest.mark.parametrize("name", presets())
def test_preset_is_an_algorithm_with_modifiers(name: str) -> None:
    preset = presets()[name]
    assert preset.checked in ("executed", "read")
    assert preset.summary.endswith(".")
    sentences = [*preset.differences, *(text for texts in preset.modifiers.values() for text in texts)]
    assert [text for text in sentences if not text.endswith(".")] == []  # the name of a convention that does not exist
    build_algorithm(composition_named(name))


@pytest.mark.parametrize("name", presets())
def test_defaults_of_a_preset_are_settings_of_modifiers_that_it_does_not_have(name: str) -> None:
    kinds = [kind_of(modifier) for modifier in composition_named(name).modifiers]
    for kind, settings in presets()[name].defaults.items():
        assert kind not in kinds
        added = composition_named(name, [f"{kind}=true"]).modifiers[-1]
        defaults = find("modifier", kind).Config()
        assert (kind_of(added), added) == (kind, attrs.evolve(defaults, **settings))
        assert added != defaults


_TRL, _OWN = {"estimator": "importance_k3"}, {"estimator": "k2"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["algorithm.kl_loss=0.5"], kl_loss.Config(coef=0.5, **_TRL)),
        (["algorithm.kl_loss=true"], kl_loss.Config(**_TRL)),
        (["algorithm.kl_loss.coef=0.5"], kl_loss.Config(coef=0.5, **_TRL)),
        (["algorithm.kl_loss.estimator=k2"], kl_loss.Config(**_OWN)),
        (["algorithm.kl_loss=0.5", "algorithm.kl_loss.estimator=k2"], kl_loss.Config(coef=0.5, **_OWN)),
        (['algorithm.modifiers=["kl_loss"]'], kl_loss.Config(**_TRL)),
        (['algorithm.modifiers=[{kind="kl_loss", estimator="k2"}]'], kl_loss.Config(**_OWN)),
        (["algorithm.importance_weight=token"], importance_weight.Config(level="token", how="band", max_ratio=3.0)),
    ],
)
def test_a_modifier_beside_a_preset_has_its_defaults_and_what_is_set_replaces_them(settings, expected) -> None:
    for order in (["algorithm.kind=grpo@trl", *settings], [*settings, "algorithm.kind=grpo@trl"]):
        assert resolve("addition", order).algorithm.modifiers[-1] == expected
    assert kl_loss.Config().estimator == resolve("addition", ["algorithm.kl_loss=1"]).algorithm.modifiers[0].estimator


def test_a_modifier_that_is_not_added_has_no_effect_by_its_defaults() -> None:
    plain = resolve("addition", ["algorithm.kind=grpo@trl"])
    assert plain == resolve("addition", ["algorithm.kind=grpo@trl", "algorithm.kl_loss=false"])
    assert "kl_loss" not in map(kind_of, plain.algorithm.modifiers)


def test_modifiers_in_a_framework_have_its_defaults_or_those_of_a_preset() -> None:
    defaults = {"kl_loss": {"estimator": "k1"}, "entropy_bonus": {"coef": 0.5}}
    penalty = {"kind": "kl_loss", "coef": 0.04}
    assert compose("grpo@trl", [penalty], defaults).modifiers[-1] == kl_loss.Config(coef=0.04, **_TRL)
    assert compose("grpo@verl", [penalty], defaults).modifiers[-1] == kl_loss.Config(coef=0.04)
    for algorithm, added in (("grpo", [penalty]), ({"kind": "grpo", "kl_loss": 0.04}, [])):
        assert compose(algorithm, added, defaults).modifiers == (kl_loss.Config(coef=0.04, estimator="k1"),)
        assert compose(algorithm, added).modifiers == (kl_loss.Config(coef=0.04),)
    config = kl_loss.Config(coef=0.04)
    assert compose("grpo@trl", [config]).modifiers[-1] == compose("grpo", [config], defaults).modifiers[0] == config


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
