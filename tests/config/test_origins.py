"""The origin of values: what gives way to the command line, what is an error, and whose value a message is about."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from purerl.config.check import check
from purerl.config.listing import annotate
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, from_dict
from purerl.errors import ConfigError
from purerl.recipes import explain_recipe, resolve, settle
from purerl.recipes.chat import chat

REQUIRED = ("model=m", "data=d")
CONSTANT = "trainer.lr_scheduler=constant"
LEFT_OUT = "left out, because it has no effect with your settings: "


def _notes(recipe: str, *settings: str) -> list[str]:
    return settle(recipe, settings, check)[1]


def _error(recipe: str, *settings: str) -> str:
    with pytest.raises(ConfigError) as error:
        settle(recipe, settings, check)
    return str(error.value)


def test_a_value_of_the_recipe_that_lost_its_effect_gives_way() -> None:
    config, notes = settle("chat", [*REQUIRED, CONSTANT], check)
    assert (config.trainer.lr_scheduler, config.trainer.min_lr_ratio) == ("constant", 0.0)
    need = "another lr_scheduler than constant and inverse_sqrt, which have no last learning rate"
    assert notes == [f"{LEFT_OUT}trainer.min_lr_ratio = 0.1 of the recipe chat; it needs {need}"]


def test_it_gives_way_also_if_only_a_check_of_the_whole_configuration_refuses_it() -> None:
    config, notes = settle("gsm8k", [*REQUIRED, "algorithm=sft", "evaluate="], check)
    assert (config.rollout, config.rewards, config.generator) == (None, (), None)
    shown = [note.removeprefix(LEFT_OUT).partition(";")[0] for note in notes]
    assert min(shown).startswith("generator of the recipe gsm8k")
    assert any(text == "rollout of the recipe gsm8k" for text in shown)


def test_a_value_of_the_user_does_not_give_way() -> None:
    for setting in ("trainer.min_lr_ratio=0.2", "trainer={kind = 'hf', lr_scheduler = 'constant', min_lr_ratio = 0.2}"):
        message = _error("chat", *REQUIRED, CONSTANT, setting)
        assert message.startswith("trainer.min_lr_ratio has no effect\n  got:  0.2\n")
        assert "from:" not in message


def test_a_value_of_a_file_gives_way_to_the_command_line_unless_it_had_no_effect_before(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    text = dumps(chat("m", "d"))
    file.write_text(text)
    assert _notes(str(file), CONSTANT)[0].startswith(f"{LEFT_OUT}trainer.min_lr_ratio = 0.1 of {file}; it needs")
    file.write_text(text.replace('lr_scheduler = "cosine"', 'lr_scheduler = "constant"'))
    message = _error(str(file), "seed=3")
    assert message.startswith("trainer.min_lr_ratio has no effect\n")
    assert message.endswith(f"\n  from: trainer.min_lr_ratio = 0.1 of {file}")


def test_a_message_says_whose_value_it_is_about(tmp_path: Path) -> None:
    """The recipe has groups of one completion, which only the algorithm of the user refuses."""
    file = tmp_path / "recipes_of_test_origins.py"
    file.write_text(
        "from attrs import evolve\nfrom purerl.recipes.addition import addition\nfrom purerl.algos import ppo\n\n"
        "def alone():\n    config = evolve(addition(), algorithm=ppo.Config())\n"
        "    return evolve(config, rollout=evolve(config.rollout, samples_per_prompt=1))\n"
    )
    message = _error(f"{file}:alone", "algorithm=grpo")
    assert message == (
        "rollout.samples_per_prompt\n  got:  1\n  need: at least 2: grpo compares the completions of a prompt\n"
        f"  from: rollout.samples_per_prompt = 1 of the recipe {file}:alone"
    )
    assert "from:" not in _error(f"{file}:alone", "algorithm=grpo", "rollout.samples_per_prompt=1")


def test_a_run_from_python_warns() -> None:
    with pytest.warns(UserWarning, match=r"^left out, .*: trainer.min_lr_ratio = 0.1 of the recipe chat; it needs"):
        config = resolve("chat", [*REQUIRED, CONSTANT])
    assert config.trainer.min_lr_ratio == 0.0


def test_values_of_a_preset_have_its_name() -> None:
    sources = {each.key: each.source for each in explain_recipe("addition", ["algorithm=grpo@verl"])}
    assert sources["algorithm.kind"] == "--set"
    assert {key for key, source in sources.items() if source == "grpo@verl"} >= {"algorithm.modifiers"}


def test_each_value_that_is_not_a_default_has_its_origin_as_a_comment() -> None:
    config, _ = settle("chat", [*REQUIRED, "algorithm.label_smoothing=0.1", "trainer.betas=[0.9, 0.95]"])
    origins = {each.key: each.source for each in explain_recipe("chat", [*REQUIRED, "algorithm.label_smoothing=0.1"])}
    text = annotate(dumps(config), {**origins, "trainer.betas": "--set"})
    lines = text.splitlines()
    assert 'name = "chat"  # recipe' in lines
    assert "lr = 1e-05  # recipe" in lines
    assert "betas = [  # --set" in lines
    assert "ppo_epochs = 1" in lines
    assert "modifiers = [  # --set" in lines
    assert from_dict(RunConfig, tomllib.loads(text)) == config


def test_modifiers_that_are_sections_have_origins_too() -> None:
    text = '[[algorithm.modifiers]]\nkind = "kl_loss"\ncoef = 0.1\n\n[[rewards]]\nweight = 2.0'
    origins = {"algorithm.modifiers": "recipe", "algorithm.kl_loss.coef": "--set", "rewards": "grpo@trl"}
    assert annotate(text, origins).splitlines() == [
        "[[algorithm.modifiers]]",
        'kind = "kl_loss"  # recipe',
        "coef = 0.1  # --set",
        "",
        "[[rewards]]  # grpo@trl",
        "weight = 2.0",
    ]
