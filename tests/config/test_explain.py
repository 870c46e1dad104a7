"""`explain` and `explain_recipe`: every setting with its value, unit, meaning, and the source of the value."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from attrs import evolve

from purerl import RunConfig
from purerl.config.listing import Setting, explain
from purerl.config.overrides import apply
from purerl.config.structure import dumps, to_dict
from purerl.config.tables import flat
from purerl.errors import ConfigError
from purerl.recipes import explain_recipe, resolve
from purerl.recipes.addition import addition
from tests.config.examples import Config, Section, Settings

HERE = "tests.config.test_explain"


def _sources(settings: list[Setting]) -> dict[str, str]:
    return {setting.key: setting.source for setting in settings}


def test_every_setting_of_a_recipe_is_explained_once_with_its_value() -> None:
    settings = explain_recipe("addition", ())
    keys = [setting.key for setting in settings]
    assert len(set(keys)) == len(keys)
    assert all(f"{key}.".startswith(tuple(f"{known}." for known in keys)) for key in flat(to_dict(addition())))
    explained = {setting.key: setting for setting in settings}
    max_tokens = Setting("rollout.max_tokens", "4", "tokens", "maximum number of new tokens", "recipe")
    assert explained["rollout.max_tokens"] == max_tokens
    assert explained["trainer.betas"].value == "[0.9, 0.99]"
    assert explained["stop_when"].value == ""
    assert explained["initial_run.algorithm.kind"].value == '"sft"'


def test_sources_are_the_recipe_a_setting_or_the_default() -> None:
    settings = ["algorithm.kind=grpo", "evaluate={data = 'x', every = 2, max_tokens = 3}", "trackers=['tensorboard']"]
    sources = _sources(explain_recipe("addition", [*settings, " seed = 0"]))
    changed = ("algorithm.kind", "evaluate.data", "trackers", "seed", "evaluate.max_tokens")
    assert {sources[key] for key in changed} == {"--set"}
    assert (sources["algorithm.clip_low"], sources["max_steps"], sources["ppo_epochs"]) == (
        "default",
        "recipe",
        "default",
    )
    assert sources["evaluate.temperature"] == "default"


def recipe(
    model: str, size: int, kl: Annotated[float, "coefficient of the KL term"] = 0.5, note: str = ""
) -> RunConfig:
    """A recipe with arguments. It fails without a real model."""
    if model == "MODEL":
        raise ConfigError("no such model")
    return evolve(addition(), model=model, batch_size=size, name=f"{kl} {note}")


def test_arguments_of_a_recipe_are_explained_with_their_meaning() -> None:
    settings = explain_recipe("gsm8k", ["test=b.parquet", "data=d"])
    assert [(setting.key, setting.value, setting.source) for setting in settings[:3]] == [
        ("model", "", "missing"), ("data", "d", "--set"), ("test", "b.parquet", "--set"),
    ]  # fmt: skip
    arguments = {setting.key: setting for setting in explain_recipe(f"{HERE}:recipe", ["model=m", "size=3"])}
    assert arguments["kl"] == Setting("kl", "0.5", "", "coefficient of the KL term", "default")
    assert arguments["size"] == Setting("size", "3", "", "an argument of the recipe", "--set")
    message = f"got:  no size\n  do:   purerl train {HERE}:recipe --set model=MODEL --set s"
    with pytest.raises(ConfigError, match=message):
        explain_recipe(f"{HERE}:recipe", [])


def test_settings_that_follow_from_arguments_have_the_source_set() -> None:
    sources = _sources(explain_recipe("gsm8k", ["test=b.parquet", "data=d", "max_steps=4"]))
    assert (sources["evaluate.data"], sources["data.files"], sources["max_steps"]) == ("--set",) * 3
    assert (sources["model.path"], sources["evaluate.every"], sources["batch_size"]) == ("recipe", "recipe", "recipe")
    assert _sources(explain_recipe("gsm8k", ["data=d"]))["data.validation_fraction"] == "recipe"


def test_several_plugins_are_a_list_that_set_accepts() -> None:
    values = {setting.key: setting.value for setting in explain_recipe("addition", ['trackers=["tensorboard"]'])}
    assert resolve("addition", [f"trackers={values['trackers']}"]) == resolve("addition", ['trackers=["tensorboard"]'])


def test_settings_of_a_file_have_it_as_source_even_if_they_are_the_default(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(dumps(addition()))
    sources = _sources(explain_recipe(str(path), ["max_steps=3"]))
    assert (sources["ppo_epochs"], sources["checkpoint.every"], sources["max_steps"]) == (str(path), str(path), "--set")
    assert sources["num_epochs"] == "default"


def test_values_are_written_as_set_accepts_them() -> None:
    config = Settings(name="s", optional=Section(words=("a", "b")), engine=Config(), sections=(Section(size=4),))
    values = {setting.key: setting.value for setting in explain(config, recipe="recipe")}
    assert (values["name"], values["optional.words"], values["engine.betas"]) == ('"s"', '["a", "b"]', "[0.9, 0.99]")
    assert (values["optional.enabled"], values["inner"]) == ("false", "")
    assert values["sections"].startswith("[{size = 4, count = 1, ")
    settings = [f"{setting.key}={setting.value}" for setting in explain_recipe("addition", ()) if setting.value]
    assert resolve("addition", settings) == addition()


def test_settings_of_roles_are_explained_by_role() -> None:
    settings = [
        "algorithm.kind=opd",
        "roles.teachers.math.model=m",
        "roles.teachers.code={model = 'c', update_every = 2}",
    ]
    explained = {setting.key: setting for setting in explain(apply(addition(), settings), recipe="recipe")}
    assert explained["roles.teachers.math.model.path"].value == '"m"'
    assert explained["roles.teachers.code.update_every"].value == "2"
    assert explained["roles.teachers.code.update_every"].meaning.startswith("steps between updates")


def test_every_setting_of_a_run_has_a_description() -> None:
    assert [setting.key for setting in explain_recipe("addition", ()) if not setting.meaning] == []
