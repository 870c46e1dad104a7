"""The recipes of defaults: each value is the default of its setting, or the value that its description shows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from purerl.config.check import check
from purerl.config.missing import missing_section
from purerl.config.schema import RunConfig
from purerl.recipes import explain_recipe, required_settings, resolve
from purerl.rollouts.settings import Rollout

METHODS = ("grpo", "ppo", "sft", "dpo", "kto", "reward_model")
NAMED = {"name", "model.path", "data.files", "algorithm.kind", "trainer.kind", "generator.kind", "rewards"}
ONE_EPOCH = ("num_epochs", "1.0")


def _shown(cls: type) -> dict[str, Any]:
    """The values that the descriptions of settings without a default show."""
    fields = [field for field in attrs.fields(cls) if field.default is attrs.NOTHING]
    return {field.name: tomllib.loads(f"value = {field.metadata['example']}")["value"] for field in fields}


def _chosen(recipe: str) -> Iterator[tuple[str, str]]:
    config = resolve(recipe, required_settings(recipe))
    for setting in explain_recipe(recipe, (), config):
        if setting.source == "recipe" and setting.key not in NAMED:
            yield setting.key, setting.value


@pytest.mark.parametrize("recipe", METHODS)
def test_every_value_is_a_default_or_the_one_that_its_description_shows(recipe: str) -> None:
    rollout = {f"rollout.{name}": value for name, value in _shown(Rollout).items()}
    shown = {"batch_size": _shown(RunConfig)["batch_size"]} | (rollout if recipe in ("grpo", "ppo") else {})
    assert dict(_chosen(recipe)) == {**{key: str(value) for key, value in shown.items()}, **dict([ONE_EPOCH])}


@pytest.mark.parametrize("recipe", METHODS)
def test_it_takes_a_model_and_data_and_has_the_name_of_its_algorithm(recipe: str) -> None:
    assert required_settings(recipe) == ["model=MODEL", "data=DATA"]
    config = resolve(recipe, [*required_settings(recipe), "max_steps=3"])
    check(config)
    assert (config.name, str(config.algorithm), config.max_steps, config.num_epochs) == (recipe, recipe, 3, None)
    assert (config.generator is None) == (recipe not in ("grpo", "ppo"))


def test_the_values_are_those_that_the_error_of_a_missing_section_names() -> None:
    config = resolve("grpo", required_settings("grpo"))
    assert config.rollout is not None
    text = f"samples_per_prompt = {config.rollout.samples_per_prompt}, max_tokens = {config.rollout.max_tokens}"
    assert text in str(missing_section("rollout"))
    assert 'generator = "hf"' in str(missing_section("generator"))
