"""Recipes with parameters, in Python and from the command line, and the error for each mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from attrs import evolve

from purerl.algos import ppo
from purerl.config.check import check
from purerl.config.schema import Role, RunConfig
from purerl.config.structure import dumps, to_dict
from purerl.data.settings import Data
from purerl.errors import ConfigError
from purerl.evaluation.settings import Validation
from purerl.recipes import explain_recipe, required_settings, resolve
from purerl.recipes.addition import addition
from purerl.recipes.chat import chat
from purerl.recipes.gsm8k import gsm8k
from purerl.recipes.preferences import preferences
from purerl.settings import Model

HERE = "tests.recipes.test_resolve"
REQUIRED = ("model=m", "data=d.parquet")


def recipe_of_all_types(
    model: str | Model, size: int, *, fraction: float = 0.5, note: str | None = None, **more: Any
) -> RunConfig:
    """A recipe with parameters of several types."""
    return evolve(addition(), model=model, batch_size=size, name=f"{fraction} {note}", **more)


def failing(data: str) -> RunConfig:
    """A recipe with a string as argument. It raises an exception."""
    return _raise(data)


def _raise(data: str) -> RunConfig:
    return addition()[data]


def test_the_error_of_a_failing_recipe_has_its_lines() -> None:
    with pytest.raises(ConfigError) as error:
        resolve(f"{HERE}:failing", ["data=d"])
    what, got, need, do = str(error.value).splitlines()
    assert what == f"recipe '{HERE}:failing' raised"
    assert got.startswith("  got:  TypeError: 'RunConfig' object")
    assert need == "  need: a function that returns a RunConfig"
    assert re.fullmatch(rf"  do:   fix it in {re.escape(__file__)}, line \d+ in failing, line \d+ in _raise", do)


def test_settings_with_the_name_of_a_parameter_are_arguments() -> None:
    recipe = f"{HERE}:recipe_of_all_types"
    expected = evolve(addition(), model=Model("m"), batch_size=3, name="0.25 n")
    assert resolve(recipe, ["model=m", "size=3", "fraction=0.25", "note=n"]) == expected
    assert resolve(recipe, ["model=m", "size=3"]).name == "0.5 None"
    assert resolve(recipe, ["model=m", "size=3", "fraction=0.1", "fraction="]).name == "0.5 None"
    assert required_settings(recipe) == ["model=MODEL", "size=SIZE"]


@pytest.mark.parametrize("recipe", [gsm8k, preferences, chat])
def test_strings_and_sections_are_accepted_in_python_and_as_settings(recipe: Any) -> None:
    name = recipe.__name__
    config = recipe(model="m", data="d.parquet")
    assert config.name == name
    assert config == recipe(model=Model("m"), data=Data(files=("d.parquet",)))
    assert config == resolve(name, REQUIRED)
    revised = evolve(config, model=Model("m", revision="v2", trust_remote_code=True, attention="flash_attention_2"))
    more = ["model.revision=v2", "model.trust_remote_code=true", "model.attention=flash_attention_2"]
    assert resolve(name, [*REQUIRED, *more]) == resolve(name, [*more, *REQUIRED]) == revised


def test_all_other_settings_are_applied_to_the_returned_configuration() -> None:
    config = resolve("gsm8k", [*REQUIRED, "trainer.lr=1e-5", "algorithm.kind=dr_grpo", "rollout.samples_per_prompt=4"])
    assert (config.trainer.lr, type(config.algorithm.base).__module__) == (1e-5, "purerl.algos.dr_grpo")
    assert config.trainer.warmup_ratio == gsm8k("m", "d.parquet").trainer.warmup_ratio


@pytest.mark.parametrize("recipe", ["addition", "gsm8k", "preferences", "chat"])
def test_a_run_may_have_any_length(recipe: str) -> None:
    """The warm-up is a fraction of the run, so a short run needs no other setting."""
    required = () if recipe == "addition" else REQUIRED
    default = resolve(recipe, required)
    for steps in (1, 2, 12):
        config = resolve(recipe, [*required, f"max_steps={steps}"])
        check(config)
        assert config == evolve(default, max_steps=steps, num_epochs=None)
    for epochs in (0.1, 3.0):
        config = resolve(recipe, [*required, f"num_epochs={epochs}"])
        check(config)
        assert config == evolve(default, max_steps=None, num_epochs=epochs)
    warmups = [default.trainer.warmup(updates) for updates in (1, 12, 120, 1000)]
    assert warmups == sorted(warmups), "it grows with the run"
    assert warmups[0] == 0 < warmups[-1]
    message = "trainer.warmup_steps\n  got:  5000\n  need: less than .*\n  do:   lower it"
    with pytest.raises(ConfigError, match=message):
        check(resolve(recipe, [*required, "max_steps=9", "trainer.warmup_steps=5000"]))
    trainer = resolve(recipe, [*required, "trainer.warmup_steps=5"]).trainer
    assert (trainer.warmup_steps, trainer.warmup_ratio) == (5, None), "the warm-up of the recipe is replaced"
    with pytest.raises(ConfigError, match=r"^trainer.warmup_steps or warmup_ratio\n  got:  warmup_steps = 5, warmup"):
        resolve(recipe, [*required, "trainer.warmup_steps=5", "trainer.warmup_ratio=0.5"])


@pytest.mark.parametrize("recipe", ["addition", "gsm8k", "preferences", "chat"])
@pytest.mark.parametrize("name", ["max_steps", "num_epochs"])
def test_length_of_zero_is_refused_and_not_replaced(recipe: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}\n  got:  0"):
        resolve(recipe, [*(() if recipe == "addition" else REQUIRED), f"{name}=0"])


def test_trainers_of_roles_in_a_file_inherit_changed_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        dumps(evolve(addition(), algorithm=ppo.Config())) + "[roles.critic.trainer]\nweight_decay = 0.125\n"
    )
    config = resolve(str(file), ["trainer.lr=0.5"])
    inherited = config.roles["critic"].trainer
    assert (config.trainer.lr, inherited.lr, inherited.weight_decay) == (0.5, 0.5, 0.125)


@pytest.mark.parametrize("recipe", ["addition", "gsm8k", "preferences", "chat"])
def test_steps_and_epochs_exclude_each_other_in_every_recipe(recipe: str) -> None:
    required = () if recipe == "addition" else REQUIRED
    with pytest.raises(ConfigError, match=r"^max_steps or num_epochs\n  got:  max_steps = 3, num_epochs = 2.0"):
        resolve(recipe, [*required, "max_steps=3", "num_epochs=2"])


def test_gsm8k_has_a_validation_set_unless_it_has_test_problems() -> None:
    assert resolve("gsm8k", REQUIRED).data.validation_fraction == 0.05
    assert resolve("gsm8k", [*REQUIRED, "data.validation_fraction=0.2"]).data.validation_fraction == 0.2
    tested = resolve("gsm8k", [*REQUIRED, "test=t.parquet"])
    assert (tested.data.validation_fraction, tested.evaluate.data) == (None, {"t": "t.parquet"})


def test_a_validation_fraction_of_zero_is_kept() -> None:
    config = resolve("gsm8k", [*REQUIRED, "data.validation_fraction=0"])
    assert config.data.validation_fraction == 0
    assert gsm8k("m", Data(files=("d",), validation_fraction=0.0)).data.validation_fraction == 0
    with pytest.raises(
        ConfigError, match=r"^evaluate.data is missing\n.*\n  do:   set it, .*, evaluate=, turns it off"
    ):
        check(config)
    check(resolve("gsm8k", [*REQUIRED, "data.validation_fraction=0", "test=t.parquet"]))
    check(resolve("gsm8k", [*REQUIRED, "data.validation_fraction=0", "evaluate="]))
    shown = {each.key: (each.value, each.source) for each in explain_recipe("gsm8k", ["data.validation_fraction=0"])}
    assert shown["data.validation_fraction"] == ("0.0", "--set")


def test_empty_test_problems_of_gsm8k_are_not_taken_for_none() -> None:
    with pytest.raises(ConfigError, match="^data"):
        gsm8k("m", "d", test="")


@pytest.mark.parametrize("recipe", ["addition", "gsm8k", "preferences", "chat"])
def test_evaluation_can_be_turned_off_in_every_recipe(recipe: str) -> None:
    required = () if recipe == "addition" else REQUIRED
    config = resolve(recipe, [*required, "evaluate="])
    check(config)
    assert (config.evaluate, config.data.validation_fraction) == (None, None)
    with pytest.raises(ConfigError, match="^stop_when has no effect\n"):
        check(resolve(recipe, [*required, "evaluate=", "stop_when.metric=eval/accuracy", "stop_when.at_least=1"]))
    with pytest.raises(ConfigError, match="^data.validation_fraction has no effect\n  got:  0.1\n"):
        check(resolve(recipe, [*required, "evaluate=", "validation=", "data.validation_fraction=0.1"]))


def test_problems_that_are_named_replace_the_validation_set_of_the_recipe() -> None:
    config = resolve("gsm8k", [*REQUIRED, "evaluate.data=t.parquet"])
    check(config)
    assert (config.data.validation_fraction, config.evaluate.data) == (None, {"t": "t.parquet"})
    with pytest.raises(ConfigError, match="^data.validation_fraction has no effect\n  got:  0.1\n"):
        check(resolve("gsm8k", [*REQUIRED, "evaluate.data=t.parquet", "data.validation_fraction=0.1"]))
    assert resolve("gsm8k", [*REQUIRED, "evaluate.every=3"]).data.validation_fraction == 0.05


@pytest.mark.parametrize("recipe", ["preferences", "chat"])
def test_a_validation_set_is_used_by_default(recipe: str) -> None:
    assert resolve(recipe, REQUIRED).validation is None
    config = resolve(recipe, [*REQUIRED, "data.validation_fraction=0.1"])
    check(config)
    assert (config.validation, config.evaluate) == (Validation(every=50), None)
    for setting in ("validation=h.jsonl", "validation.data=h.jsonl", 'validation.data=["h.jsonl"]'):
        config = resolve(recipe, [*REQUIRED, setting])
        check(config)
        assert config.validation.data == ("h.jsonl",)


def test_turning_the_evaluation_off_in_a_file_drops_its_validation_fraction(tmp_path: Path) -> None:
    for name, inner in (("run", ""), ("outer", "initial_run.")):
        config = gsm8k("m", "d.parquet")
        if inner:
            config = evolve(addition(), initial_run=config)
        (tmp_path / f"{name}.toml").write_text(dumps(config))
        changed = resolve(f"{tmp_path}/{name}.toml", [f"{inner}evaluate="])
        changed = changed.initial_run if inner else changed
        assert (changed.evaluate, changed.data.validation_fraction) == (None, None)


def test_a_string_is_a_model_in_every_recipe(tmp_path: Path) -> None:
    assert resolve("addition", ["model=m", "model.dtype=auto"]).model == Model("m", dtype="auto")
    assert Role(model="t").model == Model("t")
    (tmp_path / "run.toml").write_text(dumps(gsm8k("m", "d.parquet")))
    assert resolve(f"{tmp_path}/run.toml", ["data=e.parquet"]).data == Data(files=("e.parquet",))


def test_a_setting_may_be_one_that_a_toml_file_lacks(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    table = to_dict(gsm8k("m", "d.parquet"))
    del table["data"]
    file.write_text(tomli_w.dumps(table))
    assert resolve(str(file), ["data=e.parquet"]).data == Data(files=("e.parquet",))
    with pytest.raises(ConfigError, match="^data is missing"):
        resolve(str(file), ["seed=3"])
    with pytest.raises(ConfigError, match="run.toml'\ndata is missing"):
        resolve(str(file))


ALL_TYPES = f"{HERE}:recipe_of_all_types"


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("gsm8k", [], "recipe 'gsm8k'\n  got:  no model and no data\n  do:   purerl train gsm8k --set model=MODEL --"),
        ("chat", ["data=d"], "recipe 'chat'\n  got:  no model\n  do:   purerl train chat --set model=MODEL --set d"),
        ("chat", ["data=d", "model="], "model is missing\n  need: an argument of the recipe"),
        ("chat", [*REQUIRED, "model.revison=v2"], "model.revison\n  got:  no such setting\n  need: one that"),
        ("chat", ["model=m", "data.validation_fraction=2"], "data.files is missing\n"),
        ("chat", [*REQUIRED, "test=t"], "test\n  got:  no such setting\n"),
        (
            "gsm8k",
            [*REQUIRED, "tets=z"],
            "tets\n  got:  no such setting\n  need: one that `purerl config` lists\n  do:   did you mean 'test'?",
        ),
        (ALL_TYPES, ["model=m", "size=many"], 'size\n  got:  "many"\n  need: an integer'),
        ("addition", ["max_steps=-5"], "max_steps\n  got:  -5\n  need: an integer, at least 1"),
        ("addition", ["max_steps=0"], "max_steps\n  got:  0\n  need: an integer, at least 1"),
        ("gsm8k", [*REQUIRED, "max_steps=-1"], "max_steps\n  got:  -1\n  need: an integer, at least 1"),
        ("gsm8k", [*REQUIRED, "max_steps=0"], "max_steps\n  got:  0\n  need: an integer, at least 1"),
        ("chat", [*REQUIRED, "max_steps=-30"], "max_steps\n  got:  -30\n  need: an integer, at least 1"),
        ("preferences", [*REQUIRED, "max_steps=-30"], "max_steps\n  got:  -30\n  need: an integer, at least 1"),
        (ALL_TYPES, ["model=m", "size=1", "note=y", "note.fraction=0.1"], 'note\n  got:  "y" and {"fraction": 0.1}\n'),
        (
            f"{HERE}:failing",
            ["data=y", "data.fraction=0.1"],
            'data\n  got:  "y" and {"fraction": 0.1}\n  need: a string\n  do:   leave out its settings: fraction',
        ),
        (ALL_TYPES, ["model=3", "size=1"], "model\n  got:  3\n  need: a section: keys and values"),
    ],
)  # fmt: skip
def test_mistakes_are_reported(recipe: str, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(recipe, settings)
    assert str(error.value).startswith(message)
