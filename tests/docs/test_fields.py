"""The tables of all fields of TRL and verl: each field has one answer, and our settings in it exist."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache

import pytest

from docs.generate import fields, migration
from purerl.config.aliases import LIBRARIES
from tests.config.known_settings import problems

answers = cache(fields.answers)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_field_has_an_answer_and_every_pattern_a_field(library: str) -> None:
    patterns = [(rule, pattern) for rule in fields.rules(library) for pattern in rule.names]
    unused = [pattern for rule, pattern in patterns if not any(_uses(answers(library), rule, pattern))]
    assert unused == []
    assert sorted(set(fields.field_names(library))) == sorted(fields.field_names(library))


def _uses(answers: dict[str, fields.Rule], rule: fields.Rule, pattern: str) -> list[bool]:
    return [answer is rule and fnmatchcase(name, pattern) for name, answer in answers.items()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_settings_of_every_rule_exist(library: str) -> None:
    found = {rule.names: problems(rule.settings) for rule in fields.rules(library)}
    assert {names: wrong for names, wrong in found.items() if wrong} == {}
    assert [rule.names for rule in fields.rules(library) if rule.settings and rule.because] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_page_shows_every_field(library: str) -> None:
    page = dict(migration.pages())[f"from_{library}"].partition("## Every")[2]
    for name, answer in answers(library).items():
        shown = name if library == "verl" else name.partition(".")[2]
        assert any(f"`{shown}`" in line and str(answer) in line for line in page.splitlines()), name


@pytest.mark.parametrize(
    ("library", "name", "answer"),
    [
        ("trl", "GRPOConfig.num_generations", "`rollout.samples_per_prompt`"),
        ("trl", "GRPOConfig.beta", "`algorithm.kl_loss`"),
        ("trl", "DPOConfig.beta", "`algorithm.beta`"),
        ("trl", "TrainingArguments.learning_rate", "`trainer.lr`"),
        ("trl", "DPOConfig.ld_alpha", "not yet"),
        ("trl", "DPOConfig.disable_dropout", "not needed: dropout is always off"),
        ("verl", "actor_rollout_ref.actor.optim.lr", "`trainer.lr`"),
        ("verl", "critic.optim.lr", "`roles.critic.trainer.lr`"),
        ("verl", "data.video_key", "not yet. There is no video and no audio"),
    ],
)
def test_answer_of_a_field(library: str, name: str, answer: str) -> None:
    assert str(answers(library)[name]) == answer
