"""Algorithms that are other algorithms with modifiers: what they are defined as, and how this is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from purerl.algos import dapo, forking_tokens, grpo, luspo
from purerl.algos.algebra import fingerprint
from purerl.algos.modifiers import entropy_bonus, kl_loss, reduction
from purerl.composition import Composition, build_algorithm, definition, with_modifiers
from purerl.config.listing import toml
from purerl.errors import ConfigError
from purerl.explain.algorithm import algorithm_named, anatomy, composition_named
from purerl.explain.description import definitions, formula_of
from purerl.plugins import find, kind_of, names
from tests.algos import own_composition

COMPOSED = [name for name in names("algorithm") if definition(find("algorithm", name).Config()) is not None]


def test_algorithms_that_are_others_with_modifiers() -> None:
    assert {
        *("dapo", "decoupled_ppo", "deepseek_v3_2", "dr_grpo"),
        *("forking_tokens", "icepop", "luspo", "reinforce_plus_plus_baseline"),
    } <= {*COMPOSED}


def _configs(name: str) -> Iterator[Any]:
    """The default Config of an algorithm, and one with another value of each setting."""
    default = find("algorithm", name).Config()
    yield default
    yield attrs.evolve(default, **{field.name: 0.9 * field.default or 0.1 for field in attrs.fields(type(default))})


def _settings(composition: Composition) -> Iterator[str]:
    """`composition` as a user sets it, without `kind`: NAME=VALUE of the algorithm, and of each modifier."""
    sections = {"": composition.base, **{f"{kind_of(config)}.": config for config in composition.modifiers}}
    yield from (f"{kind_of(config)}=true" for config in composition.modifiers)
    for above, config in sections.items():
        yield from (f"{above}{name}={toml(value)}" for name, value in attrs.asdict(config).items())


@pytest.mark.parametrize("name", COMPOSED)
def test_algorithm_equals_its_base_with_modifiers_as_a_user_sets_them(name: str) -> None:
    for config in _configs(name):
        composition = definition(config)
        assert composition is not None
        settings = list(_settings(composition))
        assert composition_named(kind_of(composition.base), settings) == composition
        built, named = algorithm_named(kind_of(composition.base), settings), find("algorithm", name).algorithm(config)
        assert built == named
        assert fingerprint(built) == fingerprint(named)


def test_another_setting_is_another_algorithm() -> None:
    assert algorithm_named("grpo", ["reduction=token_mean", "group_filter=true", "clip_high=0.28"]) == dapo.algorithm()
    assert algorithm_named("grpo", ["reduction=token_mean", "group_filter=true"]) != dapo.algorithm()
    assert algorithm_named("grpo", ["reduction=token_mean", "clip_high=0.28"]) != dapo.algorithm()


def test_forking_tokens_with_all_tokens_is_dapo() -> None:
    assert forking_tokens.algorithm(forking_tokens.Config(top_fraction=1.0)) == dapo.algorithm()


# --- printing ----------------------------------------------------------------------------------------------------


def test_formula_has_the_main_fields_and_the_settings_that_are_not_defaults() -> None:
    modifiers = reduction.Config(by="constant_norm", length=64), kl_loss.Config()
    formula = formula_of(Composition(grpo.Config(clip_low=0.1), modifiers))
    assert formula == "grpo(clip_low=0.1) + reduction(by=constant_norm, length=64) + kl_loss(coef=0.001)"


def test_definitions_lead_from_an_algorithm_to_its_base() -> None:
    assert list(definitions(grpo.Config())) == []
    assert list(definitions(forking_tokens.Config(clip_high=0.3))) == [
        ("forking_tokens", "dapo(clip_high=0.3) + high_entropy_tokens(top_fraction=0.2)"),
        ("dapo", "grpo(clip_high=0.3) + reduction(by=token_mean) + group_filter(by=variance)"),
    ]


def test_anatomy_has_the_formulas_of_the_modifiers_and_of_the_definition() -> None:
    assert anatomy("grpo").formulas == []
    assert anatomy("icepop", ["kl_loss=0.1"]).formulas == [
        "icepop + kl_loss(coef=0.1)",
        "icepop = grpo + importance_weight(level=token, how=band, max_ratio=5, min_ratio=0.5)",
    ]
    [formula] = anatomy("grpo@verl").formulas
    assert formula.startswith("grpo@verl = grpo + ")


# --- algorithms of other packages --------------------------------------------------------------------------------

OWN = own_composition.__name__


def test_algorithm_of_another_package_can_be_a_composition() -> None:
    assert anatomy(OWN, ["bonus=0.5", "clip_low=0.1", "kl_loss=0.1"]).formulas == [
        f"{OWN}(clip_low=0.1, bonus=0.5) + kl_loss(coef=0.1)",
        f"{OWN} = luspo(clip_low=0.1) + entropy_bonus(coef=0.5)",
        "luspo = gspo(clip_low=0.1, clip_high=0.0025) + reduction(by=sequence_mean_of_token_sum)",
    ]
    expected = with_modifiers(luspo.algorithm(), entropy_bonus.Config(coef=0.01), kl_loss.Config(coef=0.1))
    assert build_algorithm(composition_named(OWN, ["kl_loss=0.1"])) == expected


def test_refused_modifier_of_a_definition_is_named() -> None:
    with pytest.raises(ConfigError, match="entropy_bonus has no effect\n  got:  a loss that has the term 'entropy'"):
        algorithm_named(OWN, ["entropy_bonus=0.1"])
