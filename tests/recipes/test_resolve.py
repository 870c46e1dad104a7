"""Recipes with parameters: given in Python or by settings, and what a mistake in them is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.config.check import check
from purerl.config.schema import Data, RunConfig
from purerl.config.structure import dumps
from purerl.errors import ConfigError
from purerl.protocols import Model
from purerl.recipes import resolve
from purerl.recipes.addition import addition
from purerl.recipes.chat import chat
from purerl.recipes.gsm8k import gsm8k
from purerl.recipes.preferences import preferences

HERE = "tests.recipes.test_resolve"
GIVEN = ("model=m", "data=d.parquet")


def mine(model: str | Model, size: int, *, share: float = 0.5, note: str | None = None, **more: Any) -> RunConfig:
    """A recipe with parameters of several sorts."""
    return evolve(addition(), model=model, batch_size=size, name=f"{share} {note}", **more)


def texts(data: str) -> RunConfig:
    """A recipe that takes its data as a text, and fails."""
    return _read(data)


def _read(data: str) -> RunConfig:
    return addition()[data]


def test_a_recipe_that_fails_is_named_with_its_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(f"{HERE}:texts", ["data=d"])
    what, got, need, do = str(caught.value).splitlines()
    assert what == f"recipe '{HERE}:texts' fails"
    assert got.startswith("  got:  TypeError: 'RunConfig' object")
    assert need == "  need: a function that returns a RunConfig"
    assert re.fullmatch(rf"  do:   mend it in {re.escape(__file__)}, line \d+ in texts, line \d+ in _read", do)


def test_settings_of_parameters_are_arguments() -> None:
    expected = evolve(addition(), model=Model("m"), batch_size=3, name="0.25 n")
    assert resolve(f"{HERE}:mine", ["model=m", "size=3", "share=0.25", "note=n"]) == expected
    assert resolve(f"{HERE}:mine", ["model=m", "size=3"]).name == "0.5 None"
    assert resolve(f"{HERE}:mine", ["model=m", "size=3", "share=0.1", "share="]).name == "0.5 None"


@pytest.mark.parametrize("recipe", [gsm8k, preferences, chat])
def test_texts_and_sections_do_in_python_and_as_settings(recipe: Any) -> None:
    name = recipe.__name__
    config = recipe(model="m", data="d.parquet")
    assert config.name == name
    assert config == recipe(model=Model("m"), data=Data(files=("d.parquet",)))
    assert config == resolve(name, GIVEN)
    revised = evolve(config, model=Model("m", revision="v2", trust_remote_code=True, attention="flash_attention_2"))
    more = ["model.revision=v2", "model.trust_remote_code=true", "model.attention=flash_attention_2"]
    assert resolve(name, [*GIVEN, *more]) == resolve(name, [*more, *GIVEN]) == revised


def test_all_other_settings_are_made_in_what_a_recipe_returns() -> None:
    config = resolve("gsm8k", [*GIVEN, "trainer.lr=1e-5", "algorithm.kind=dr_grpo", "rollout.samples_per_prompt=4"])
    assert (config.trainer.lr, type(config.algorithm).__module__) == (1e-5, "purerl.algos.dr_grpo")
    assert config.trainer.warmup_steps == gsm8k("m", "d.parquet").trainer.warmup_steps


@pytest.mark.parametrize("recipe", ["addition", "gsm8k", "preferences", "chat"])
def test_a_run_may_be_as_short_as_one_likes(recipe: str) -> None:
    """Its warm-up is shorter with it: a first try has few steps."""
    given = () if recipe == "addition" else GIVEN
    usual = resolve(recipe, given)
    assert resolve(recipe, [*given, f"max_steps={usual.max_steps}"]) == usual
    for steps in (1, 2, 12):
        config = resolve(recipe, [*given, f"max_steps={steps}"])
        check(config)
        assert config == evolve(
            usual, max_steps=steps, trainer=evolve(usual.trainer, warmup_steps=config.trainer.warmup_steps)
        )
    warm_ups = [
        resolve(recipe, [*given, f"max_steps={steps}"]).trainer.warmup_steps for steps in (1, 12, 120, usual.max_steps)
    ]
    assert warm_ups == sorted(warm_ups), "it grows with the run"
    with pytest.raises(ConfigError, match="trainer.warmup_steps\n  got:  5000\n  need: less than .*\n  do:   lower it"):
        check(resolve(recipe, [*given, "max_steps=9", "trainer.warmup_steps=5000"]))


def test_gsm8k_holds_problems_out_unless_it_has_others() -> None:
    assert resolve("gsm8k", GIVEN).data.validation_fraction == 0.05
    assert resolve("gsm8k", [*GIVEN, "data.validation_fraction=0.2"]).data.validation_fraction == 0.2
    tested = resolve("gsm8k", [*GIVEN, "test=t.parquet"])
    assert (tested.data.validation_fraction, tested.evaluate.data) == (0.0, {"t": "t.parquet"})


def test_a_text_is_a_model_in_any_recipe(tmp_path: Path) -> None:
    assert resolve("addition", ["model=m", "model.dtype=auto"]).model == Model("m", dtype="auto")
    assert evolve(addition(), teacher="t").teacher == Model("t")
    (tmp_path / "my.toml").write_text(dumps(gsm8k("m", "d.parquet")))
    assert resolve(f"{tmp_path}/my.toml", ["data=e.parquet"]).data == Data(files=("e.parquet",))


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("gsm8k", [], "recipe 'gsm8k'\n  got:  no model and no data\n  do:   purerl train gsm8k --set model=MODEL --"),
        ("chat", ["data=d"], "recipe 'chat'\n  got:  no model\n  do:   purerl train chat --set model=MODEL --set d"),
        ("chat", ["data=d", "model="], "model is missing\n  need: an argument of the recipe"),
        ("chat", [*GIVEN, "model.revison=v2"], "model.revison\n  got:  no such setting\n  need: one that"),
        ("chat", ["model=m", "data.validation_fraction=2"], "data.files is missing\n"),
        ("chat", [*GIVEN, "test=t"], "test\n  got:  no such setting\n"),
        (
            "gsm8k",
            [*GIVEN, "tets=z"],
            "tets\n  got:  no such setting\n  need: one that `purerl config` lists\n  do:   did you mean 'test'?",
        ),
        (f"{HERE}:mine", ["model=m", "size=many"], 'size\n  got:  "many"\n  need: a whole number'),
        ("addition", ["max_steps=-5"], "max_steps\n  got:  -5\n  need: at least 1"),
        ("gsm8k", [*GIVEN, "max_steps=-1"], "max_steps\n  got:  -1\n  need: at least 1"),
        ("chat", [*GIVEN, "max_steps=-30"], "max_steps\n  got:  -30\n  need: at least 1"),
        ("preferences", [*GIVEN, "max_steps=-30"], "max_steps\n  got:  -30\n  need: at least 1"),
        (
            f"{HERE}:mine",
            ["model=m", "size=1", "note=y", "note.held_out=0.1"],
            'note\n  got:  "y" and {"held_out": 0.1}\n',
        ),
        (
            f"{HERE}:texts",
            ["data=y", "data.validation_fraction=0.1"],
            'data\n  got:  "y" and {"validation_fraction": 0.1}\n  need: a text\n  do:   leave out what is set within',
        ),
        (f"{HERE}:mine", ["model=3", "size=1"], "model\n  got:  3\n  need: a section: keys and values"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(recipe: str, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(recipe, settings)
    assert str(error.value).startswith(message)
