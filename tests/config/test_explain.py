"""Every setting explained: value, unit, meaning, and where the value came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import pytest
from attrs import evolve

from purerl import RunConfig
from purerl.config.explain import Setting, explain
from purerl.config.structure import dumps, flat, to_dict
from purerl.errors import ConfigError
from purerl.plugins import GROUPS, find, names
from purerl.recipes import explained, resolve
from purerl.recipes.addition import addition
from tests.config.examples import Config, Part, Whole

HERE = "tests.config.test_explain"


def _sources(settings: list[Setting]) -> dict[str, str]:
    return {one.key: one.source for one in settings}


def test_every_setting_of_a_recipe_is_there_once_with_its_value() -> None:
    settings = explained("addition", ())
    keys = [one.key for one in settings]
    assert len(set(keys)) == len(keys)
    assert all(f"{key}.".startswith(tuple(f"{known}." for known in keys)) for key in flat(to_dict(addition())))
    found = {one.key: one for one in settings}
    assert found["rollout.max_tokens"] == Setting("rollout.max_tokens", "4", "tokens", "new tokens at most", "recipe")
    assert found["trainer.betas"].value == "[0.9, 0.99]"
    assert found["critic"].value == ""
    assert found["initial_run.algorithm.kind"].value == '"sft"'


def test_a_value_comes_from_the_recipe_from_a_setting_or_from_nowhere() -> None:
    settings = ["algorithm.kind=grpo", "evaluate={data = 'x', every = 2, max_tokens = 3}", "trackers=['tensorboard']"]
    found = _sources(explained("addition", [*settings, " seed = 0"]))
    assert found["algorithm.kind"] == found["evaluate.data"] == found["trackers"] == found["seed"] == "--set"
    assert (found["algorithm.clip_low"], found["max_steps"], found["ppo_epochs"]) == ("default", "recipe", "default")
    assert (found["evaluate.max_tokens"], found["evaluate.temperature"]) == ("--set", "default")


def mine(model: str, size: int, kl: Annotated[float, "how much it is held back"] = 0.5, note: str = "") -> RunConfig:
    """A recipe with arguments of its own; it fails without a model that is one."""
    if model == "MODEL":
        raise ConfigError("no such model")
    return evolve(addition(), model=model, batch_size=size, name=f"{kl} {note}")


def test_arguments_of_a_recipe_are_explained_with_what_they_mean() -> None:
    head = [(one.key, one.value, one.source) for one in explained("gsm8k", ["test=b.parquet", "data=d"])[:3]]
    assert head == [("model", "", "missing"), ("data", "d", "--set"), ("test", "b.parquet", "--set")]
    own = {one.key: one for one in explained(f"{HERE}:mine", ["model=m", "size=3"])}
    assert own["kl"] == Setting("kl", "0.5", "", "how much it is held back", "default")
    assert own["size"] == Setting("size", "3", "", "an argument of the recipe", "--set")
    with pytest.raises(ConfigError, match=f"got:  no size\n  do:   purerl train {HERE}:mine --set model=MODEL --set s"):
        explained(f"{HERE}:mine", [])


def test_what_arguments_bring_about_comes_from_them() -> None:
    found = _sources(explained("gsm8k", ["test=b.parquet", "data=d", "max_steps=4"]))
    assert (found["evaluate.data"], found["data.files"], found["trainer.warmup_steps"]) == ("--set",) * 3
    assert (found["model.path"], found["evaluate.every"], found["max_steps"]) == ("recipe", "recipe", "--set")
    assert _sources(explained("gsm8k", ["data=d"]))["data.validation_fraction"] == "recipe"


def test_several_plugins_are_a_list_that_set_takes() -> None:
    found = {one.key: one.value for one in explained("addition", ['trackers=["tensorboard"]'])}
    again = resolve("addition", [f"trackers={found['trackers']}"])
    assert again == resolve("addition", ['trackers=["tensorboard"]'])


def test_what_a_file_says_comes_from_it_though_it_be_the_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(dumps(addition()))
    found = _sources(explained(str(path), ["max_steps=3"]))
    assert (found["ppo_epochs"], found["checkpoint.every"], found["max_steps"]) == (str(path), str(path), "--set")
    assert found["critic"] == "default"


def test_values_are_what_set_takes() -> None:
    config = Whole(name="w", other=Part(words=("a", "b")), engine=Config(), parts=(Part(size=4),))
    found = {one.key: one.value for one in explain(config, recipe="recipe")}
    assert (found["name"], found["other.words"], found["engine.betas"]) == ('"w"', '["a", "b"]', "[0.9, 0.99]")
    assert (found["other.on"], found["before"]) == ("false", "")
    assert found["parts"].startswith("[{size = 4, count = 1, ")
    settings = [f"{key}={value}" for key, value in _values("addition").items() if value]
    assert resolve("addition", settings) == addition()


def _values(recipe: str) -> dict[str, str]:
    return {one.key: one.value for one in explained(recipe, ())}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in GROUPS for name in names(group)], ids=str)
def test_every_setting_of_a_plugin_says_what_it_means(group: str, name: str) -> None:
    silent = [one.name for one in attrs.fields(find(group, name).Config) if not one.metadata.get("help")]
    assert silent == []


def test_every_setting_of_a_run_says_what_it_means() -> None:
    assert [one.key for one in explained("addition", ()) if not one.meaning] == []
