"""`purerl.run_config` and `purerl.train` with the name of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

import purerl
from purerl.config.structure import dumps
from purerl.errors import ConfigError
from purerl.recipes import resolve
from purerl.recipes.gsm8k import gsm8k
from purerl.settings import Model


def test_run_config_is_what_the_command_line_makes(tmp_path: Path) -> None:
    settings = {"model": "m", "data": Path("d.parquet"), "rollout.max_tokens": 256, "trainer.betas": (0.8, 0.9)}
    strings = ["model=m", "data=d.parquet", "rollout.max_tokens=256", "trainer.betas=[0.8, 0.9]"]
    config = purerl.run_config("gsm8k", settings)
    assert config == resolve("gsm8k", strings) == purerl.run_config("gsm8k", strings)
    assert config.rollout.max_tokens == 256
    (tmp_path / "run.toml").write_text(dumps(config))
    assert purerl.run_config(tmp_path / "run.toml") == config
    assert (
        purerl.run_config(gsm8k("m", "d.parquet"), {"evaluate": None, "data.validation_fraction": 0.0}).evaluate is None
    )


def test_values_keep_their_types() -> None:
    config = purerl.run_config(
        "gsm8k", {"model": Model("m", dtype="auto"), "data": "d.parquet", "name": "3", "algorithm": "rloo"}
    )
    assert (config.model.dtype, config.name, str(config.algorithm)) == ("auto", "3", "rloo")


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("gsmk", {}, "unknown recipe 'gsmk'\n"),
        ("gsm8k", {}, "recipe 'gsm8k'\n  got:  no model and no data\n"),
        (gsm8k, {}, "the configuration of a run\n  got:  function\n  need: a RunConfig, or the name of a recipe"),
        ("addition", {"rewards": [len]}, "rewards\n  got:  [<built-in function len>]\n  need: a value that TOML has"),
        ("addition", "seed=1", "settings\n  got:  'seed=1'\n  need: a dict, or a list"),
        ("addition", {"sed": 1}, "sed\n  got:  no such setting\n"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_of_purerl(recipe: object, settings: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        purerl.train(recipe, settings=settings, directory=tmp_path / "run")
    assert str(error.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_a_recipe_is_trained_by_its_name(tmp_path: Path) -> None:
    settings = {"max_steps": 1}
    summary = purerl.train("tests.loop.small:fake", settings=settings, directory=tmp_path / "run")
    assert summary.steps == 1
