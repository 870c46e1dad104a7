"""The tables of all fields of TRL and verl: each field has one answer, and our settings in it exist."""

from __future__ import annotations

from functools import cache

import pytest

from docs.generate import fields, migration
from purerl.config.aliases import LIBRARIES

answers = cache(fields.field_answers)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_page_shows_every_field(library: str) -> None:
    lines = dict(migration.pages())[f"from_{library}"].partition("## Every")[2].splitlines()
    for name, answer in answers(library).items():
        assert any(f"`{fields.shown(library, name)}`" in line and str(answer) in line for line in lines), name


@pytest.mark.parametrize(
    ("library", "name", "answer"),
    [
        ("trl", "GRPOConfig.num_generations", "`rollout.samples_per_prompt`"),
        ("trl", "LoraConfig.lora_dropout", "not there: LoRA has no dropout"),
        ("trl", "DPOConfig.beta", "`algorithm.beta`. 0.1 by default in both"),
        ("trl", "TrainingArguments.learning_rate", "`trainer.lr`"),
        ("trl", "DPOConfig.ld_alpha", "not there: there is no LD-DPO: all tokens of a completion have the same weight"),
        ("trl", "DPOConfig.disable_dropout", "not needed: dropout is always off"),
        ("verl", "actor_rollout_ref.actor.optim.lr", "`trainer.lr`"),
        ("verl", "critic.optim.lr", "`roles.critic.trainer.lr`"),
        ("verl", "data.video_key", "not there: there is no video and no audio"),
    ],
)
def test_answer_of_a_field(library: str, name: str, answer: str) -> None:
    assert str(answers(library)[name]) == answer
