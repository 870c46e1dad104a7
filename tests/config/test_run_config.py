"""The real configurations: every recipe, every plugin's Config, and every field of them."""

from __future__ import annotations

import tomllib

import attrs
import pytest

from purerl import RunConfig, recipes
from purerl.config import schema
from purerl.config.check import check
from purerl.config.plan import plan
from purerl.config.structure import apply, digest, dumps, from_dict, to_dict
from purerl.errors import ConfigError
from purerl.plugins import GROUPS, find, names

SCHEMA = [getattr(schema, name) for name in schema.__all__]
CONFIGS = [find(group, name).Config for group in GROUPS for name in names(group)]


@pytest.mark.parametrize("recipe", recipes.names())
def test_a_recipe_is_sound_and_survives_toml(recipe: str) -> None:
    config = recipes.resolve(recipe, recipes.arguments(recipe))
    check(config)
    again = from_dict(RunConfig, tomllib.loads(dumps(config)))
    assert again == config
    assert digest(again) == digest(config)


@pytest.mark.parametrize("cls", [*SCHEMA, *CONFIGS], ids=lambda cls: f"{cls.__module__}.{cls.__qualname__}")
def test_every_setting_can_be_written_and_explains_itself(cls: type) -> None:
    for field in attrs.fields(cls):
        assert field.metadata.get("help"), field.name
        assert "None" not in str(field.type) or field.default is None, f"{field.name}: TOML cannot say None"
        assert field.name not in {"kind", "self"}
    assert cls.__setattr__ is not object.__setattr__, "it is frozen"


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__module__)
def test_the_defaults_of_a_plugin_survive_toml(cls: type) -> None:
    config = cls(**{field.name: 1 for field in attrs.fields(cls) if field.default is attrs.NOTHING})
    assert from_dict(cls, to_dict(config)) == config


def test_the_algorithm_is_switched_with_its_defaults() -> None:
    config = apply(recipes.find("addition")(), ["algorithm.kind=rloo", "trainer.lr=1e-4"])
    assert config.algorithm == find("algorithm", "rloo").Config()
    assert config.trainer.lr == 1e-4


def test_a_mistake_in_the_first_run_is_named_with_its_place() -> None:
    with pytest.raises(
        ConfigError, match=r"^initial_run.trainer.lr\n  got:  \"x\"\n  need: a number\n  do:   write it as 0.5"
    ):
        apply(recipes.find("addition")(), ["initial_run.trainer.lr=x"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rollout.temperature=inf", "rollout.temperature\n  got:  inf\n  need: above 0, and finite\n"),
        ("rollout.temperature=nan", "rollout.temperature\n  got:  nan\n  need: above 0, and finite\n"),
        (
            "seed=99999999999999999999999",
            "seed\n  got:  99999999999999999999999\n  need: from 0 to 922337",
        ),
        ("num_threads=100000", "num_threads\n  got:  100000\n  need: from 1 to 1024"),
        ("num_threads=0", "num_threads\n  got:  0\n  need: from 1 to 1024"),
        (
            'rollout.stop_strings=[""]',
            "rollout.stop_strings\n  got:  an empty text\n  need: texts of at least one character",
        ),
        (
            'evaluate.stop_strings=["a", ""]',
            "evaluate.stop_strings\n  got:  an empty text\n  need: texts of at least one character",
        ),
        ('name="a\\u0000b"', "name\n  got:  'a\\x00b'\n  need: letters, digits, spaces and . , - _, 100 at most"),
        (f"name={'a' * 300}", "name\n  got:  'aaa"),
        ("name=../x", "name\n  got:  '../x'\n"),
        ("name=a/b", "name\n  got:  'a/b'\n"),
        ("name=..", "name\n  got:  '..'\n"),
        ("name=' '", "name\n  got:  ' '\n"),
        ("name=''", "name\n  got:  ''\n"),
        ("model.dtype=bf16", "model.dtype\n  got:  'bf16'\n  do:   did you mean 'bfloat16'?"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_place(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(recipes.find("addition")(), [setting])
    assert str(caught.value).startswith(message)


def test_the_plan_says_what_it_adds_up_to() -> None:
    assert plan(recipes.find("addition")()).splitlines()[9:] == [
        "addition: dapo, 240 steps",
        "  prepare      purerl.recipes.addition:prepare",
        "  data         {run}/prepared/train.parquet",
        "  models       policy (hf)",
        "  sampler      hf",
        "  a step       64 prompts x 16 completions of at most 4 tokens: 1,024 rows; optimizer steps: 4",
        "  in all       at most 245,760 rows; optimizer steps: 960",
        "  evaluation   every 20 steps: all problems of {run}/prepared/held_out.parquet",
        "  checkpoints  every 20 steps; the newest 2 stay",
    ]


def test_the_plan_names_every_model_and_its_engine() -> None:
    config = apply(recipes.find("addition")(), ["algorithm.kind=ppo", "critic.kind=hf"])
    assert "policy (hf)" in plan(config)
    assert "critic (hf)" in plan(config)
