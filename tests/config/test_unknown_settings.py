"""Unknown settings: all of them in one message, each with what is meant, and no guess that is not certain."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from purerl.config.keys import UnknownSettingError
from purerl.config.schema import RunConfig
from purerl.config.structure import dumps, from_dict, to_dict
from purerl.config.suggestions import suggestion
from purerl.errors import ConfigError, similar
from purerl.recipes import resolve
from purerl.recipes.addition import addition

LISTED = "settings that purerl does not have; `purerl config` lists all that it has"


def _error(recipe: str, *settings: str) -> str:
    with pytest.raises(ConfigError) as error:
        resolve(recipe, settings)
    return str(error.value)


def test_unknown_settings_of_the_command_line_are_one_list_with_values() -> None:
    message = _error("addition", "learning_rate=1e-5", "trainer.lrr=2", "sed=3", "algorithm.clip_hig=0.3", "nothing=1")
    assert message.splitlines() == [
        f"5 {LISTED}",
        "  learning_rate = 1e-05",
        "    TRL's 'learning_rate' is 'trainer.lr' here: write trainer.lr = 1e-05",
        "  sed = 3",
        "    did you mean 'seed'?",
        "  nothing = 1",
        "  trainer.lrr = 2",
        "    did you mean 'lr'?",
        "  algorithm.clip_hig = 0.3",
        "    did you mean 'clip_high'?",
    ]


def test_unknown_settings_of_a_file_and_of_the_command_line_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        dumps(addition()).replace("[trainer]", "[trainer]\nlr_decay = 1\nnum_minibatches = 2") + "[sampling]\nn = 4\n"
    )
    assert _error(str(file), "tariner.lr=1").splitlines() == [
        repr(str(file)),
        f"3 {LISTED}",
        "  trainer.lr_decay = 1",
        "  trainer.num_minibatches = 2",
        "    did you mean 'num_minibatches'?",
        "  sampling.n = 4",
        "--set",
        "tariner.lr",
        "  got:  no such setting",
        "  need: one that `purerl config` lists",
        "  do:   did you mean 'trainer'?",
    ]


def test_unknown_settings_of_a_dict_have_their_values() -> None:
    table = to_dict(addition())
    table["trainer"] = {**table["trainer"], "learning_rate": 0.5}
    table["rollout"] = {**table["rollout"], "max_tokns": 7, "temperature": "hot"}
    with pytest.raises(ConfigError) as error:
        from_dict(RunConfig, table)
    text = str(error.value)
    assert text.startswith(f"2 {LISTED}\n")
    assert "  trainer.learning_rate = 0.5\n    TRL's 'learning_rate' is 'trainer.lr' here: write trainer.lr" in text
    assert "  rollout.max_tokns = 7\n    did you mean 'max_tokens'?\n" in text
    assert '\nrollout.temperature\n  got:  "hot"\n' in text
    assert len(error.value.parts) == 3


def test_unknown_settings_of_rewards_are_among_them(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    rewards = 'rewards = [{function = "a:b", wieght = 2.0}, {kind = "format", patern = "x", weight = 1.0}, "a:c"]\n'
    table = {name: value for name, value in to_dict(addition()).items() if name != "rewards"}
    file.write_text(rewards + tomli_w.dumps(table))
    message = _error(str(file), "seeds=1")
    assert "  rewards.wieght = 2.0\n    did you mean 'weight'?\n" in message
    assert "  rewards.patern = \"x\"\n    did you mean 'pattern'?\n" in message


def test_sixty_two_keys_of_another_library_are_one_answer(tmp_path: Path) -> None:
    """The keys of a real configuration of verl, as sections of TOML."""
    keys = [f"actor_rollout_ref.rollout.setting_{k}" for k in range(60)] + ["algorithm.adv_estimator", "trainer.nnodes"]
    file = tmp_path / "run.toml"
    lines = [f"{key} = {k}" for k, key in enumerate(keys)]
    file.write_text("\n".join([*lines, "trainer.kind = 'hf'", "algorithm.kind = 'grpo'"]))
    text = _error(str(file))
    assert text.splitlines()[1] == f"62 {LISTED}"
    assert all(f"  {key} = {k}" in text.splitlines() for k, key in enumerate(keys))


def test_a_credential_is_not_shown() -> None:
    message = _error("addition", "trackers_api_key=hunter2hunter2", "sed=3")
    assert "hunter2" not in message
    assert "  trackers_api_key\n" in message


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("filter_groups.metric", ["stop_when.metric"], None),
        ("logger", ["lora", "optimizer"], None),
        ("clip_hi", ["clip_low", "clip_high"], "clip_high"),
        ("evaluate.evry", ["evaluate.every", "checkpoint.every"], "evaluate.every"),
        ("evaluate.evry", ["checkpoint.every"], None),
        ("x", [], None),
    ],
)
def test_names_are_similar_in_the_last_part_and_as_a_whole(name: str, known: list[str], near: str | None) -> None:
    assert similar(name, known) == near


@pytest.mark.parametrize("key", ["filter_groups.metric", "trainer.logger", "trainer.use_v1", "neftune_noise_alpha"])
def test_names_of_other_libraries_are_never_taken_for_typing_errors(key: str) -> None:
    text = suggestion(key, 1, name=key.rpartition(".")[2], known=["stop_when", "lora", "metric"]) or ""
    assert "did you mean" not in text
    assert "stop_when" not in text
    assert "'s '" in text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("trainer.use_v1", True, "verl's 'trainer.use_v1' is not needed: there is one trainer loop"),
        ("neftune_noise_alpha", 5.0, "TRL's 'neftune_noise_alpha' is not there: there is no noise in embeddings"),
        ("bf16", True, "TRL's 'bf16' is 'trainer.mixed_precision=bfloat16' here: write trainer.mixed_precision = \"b"),
        ("loss_type", "dr_grpo", "TRL's 'loss_type' is 'algorithm.kind' here: write algorithm.kind = \"dr_grpo\""),
        ("examples", 3, "it is called 'batch_size' here: write batch_size = 3 (it was 'examples')"),
        ("steps", 3, "it is called 'max_steps' or 'num_epochs' here (it was 'steps')"),
        ("r", 16, "peft's 'r' is 'trainer.lora.rank' here"),
    ],
)
def test_other_names_have_the_line_to_write_or_the_reason(key: str, value: object, text: str) -> None:
    assert (suggestion(key, value) or "").startswith(text)


def test_one_unknown_setting_keeps_its_parts() -> None:
    with pytest.raises(UnknownSettingError) as error:
        resolve("addition", ["trainer.lrr=2"])
    assert (error.value.line, error.value.remedy) == ("trainer.lrr = 2", "did you mean 'lr'?")
