"""The real configurations: every recipe, the Config of every plugin, and every setting in them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any, get_args

import attrs
import pytest

from purerl import RunConfig, recipes
from purerl.composition import Composition
from purerl.config.check import check
from purerl.config.overrides import apply
from purerl.config.structure import digest, dumps, from_dict, to_dict
from purerl.errors import ConfigError
from purerl.placement.settings import Placement
from purerl.plugins import GROUPS, find, names
from purerl.recipes.addition import addition
from purerl.rewards.endpoint.settings import Endpoint
from tests.serving.interpreter import ENGINE_PYTHON


def _classes(kind: Any) -> Iterator[type]:
    """The settings classes in the type `kind`, with those of their fields."""
    if attrs.has(kind):
        yield kind
    inner = [field.type for field in attrs.fields(attrs.resolve_types(kind))] if attrs.has(kind) else get_args(kind)
    for part in inner:
        if part is not RunConfig and RunConfig not in get_args(part):
            yield from _classes(part)


SCHEMA = [*dict.fromkeys(_classes(RunConfig))]
CONFIGS = [find(group, name).Config for group in GROUPS for name in names(group)]


def test_sections_of_all_packages_are_part_of_the_schema() -> None:
    sections = {cls.__name__ for cls in SCHEMA}
    assert {"RunConfig", "Model", "Data", "Role", "Rollout", "Overlong", "Reward", "RewardWorkers"} <= sections
    assert {"Evaluate", "Checkpoint", "StopWhen"} <= sections


@pytest.mark.parametrize("recipe", recipes.names())
def test_every_recipe_passes_the_checks_and_toml_gives_the_same_run(recipe: str) -> None:
    engine = [f"python={ENGINE_PYTHON}"] if recipe == "gsm8k_vllm" else []  # vLLM has an environment of its own
    config = recipes.resolve(recipe, [*recipes.required_settings(recipe), *engine])
    check(config)
    same = from_dict(RunConfig, tomllib.loads(dumps(config)))
    assert same == config
    assert digest(same) == digest(config)


def _problems(cls: type) -> Iterator[str]:
    for field in attrs.fields(cls):
        if not field.metadata.get("help"):
            yield f"{field.name}: no description"
        if "None" in str(field.type) and field.default is not None:
            yield f"{field.name}: TOML has no None"
        if field.name == "self":
            yield "self is the name of a setting"
        if field.name == "kind" and cls is not Placement:
            yield "kind: the kind of a plugin is written beside its settings"
    if cls.__setattr__ is object.__setattr__:
        yield "the class is not frozen"


def test_every_setting_has_a_description_and_can_be_written() -> None:
    found = [f"{cls.__module__}.{cls.__qualname__}: {each}" for cls in (*SCHEMA, *CONFIGS) for each in _problems(cls)]
    assert not found, "\n".join(["", *found])


_VALUES = {"endpoint": Endpoint(url="http://localhost:8000/v1", model="m"), "correctness": "module:function"}


def test_defaults_of_every_plugin_can_be_written_and_read() -> None:
    for cls in CONFIGS:
        required = {field.name: 1 for field in attrs.fields(cls) if field.default is attrs.NOTHING}
        config = cls(**{name: _VALUES.get(name, value) for name, value in required.items()})
        assert from_dict(cls, to_dict(config)) == config, cls


def test_another_algorithm_starts_from_its_defaults() -> None:
    config = apply(addition(), ["algorithm.kind=rloo", "trainer.lr=1e-4"])
    assert config.algorithm == Composition(find("algorithm", "rloo").Config())
    assert config.trainer.lr == 1e-4


def test_an_error_in_the_initial_run_has_its_key() -> None:
    message = r"^initial_run.trainer.lr\n  got:  \"x\"\n  need: a number\n  do:   write it as 0.5"
    with pytest.raises(ConfigError, match=message):
        apply(addition(), ["initial_run.trainer.lr=x"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=99999999999999999999999", "seed\n  got:  99999999999999999999999\n  need: an integer from 0 to 9.2"),
        ("num_threads=100000", "num_threads\n  got:  100000\n  need: an integer from 1 to 1024"),
        ("num_threads=0", "num_threads\n  got:  0\n  need: an integer from 1 to 1024"),
        ('name="a\\u0000b"', "name\n  got:  'a\\x00b'\n  need: at most 100 letters, digits, spaces and . , - _"),
        (f"name={'a' * 300}", "name\n  got:  'aaa"),
        ("name=../x", "name\n  got:  '../x'\n"),
        ("name=a/b", "name\n  got:  'a/b'\n"),
        ("name=..", "name\n  got:  '..'\n"),
        ("name=' '", "name\n  got:  ' '\n"),
        ("name=''", "name\n  got:  ''\n"),
        ("model.dtype=bf16", "model.dtype\n  got:  'bf16'\n  do:   did you mean 'bfloat16'?"),
        (
            'evaluate.stop_strings=["a", ""]',
            "evaluate.stop_strings\n  got:  an empty string\n  need: strings of at least",
        ),
        ("checkpoint.every=0", "checkpoint.every\n  got:  0\n  need: an integer, at least 1"),
        ("batch_size=0", "batch_size\n  got:  0\n  need: an integer from 1 to 100000"),
    ],
)
def test_invalid_values_are_refused_with_their_key(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        apply(addition(), [setting])
    assert str(error.value).startswith(message)
