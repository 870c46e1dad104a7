"""Every setting of verl's trainers has an answer, and those that scripts set often have one of their own.

keys.txt has the keys that verl's 139 example scripts set, each with the number of scripts.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from purerl.config.aliases.answers import answer, answers, known, other_defaults
from purerl.porting.translation import unknown_names
from purerl.porting.verl.rules import RULES
from tests.config.known_settings import problems

LINES = [line.split() for line in (Path(__file__).parent / "keys.txt").read_text(encoding="utf-8").splitlines()]
KEYS = {key: int(count) for count, key in LINES}
OFTEN = [key for key, count in KEYS.items() if count >= 5]


def test_every_setting_of_every_trainer_has_an_answer() -> None:
    tables = {name for name, value in other_defaults("verl")["other_versions"].items() if value == {}}
    assert [name for name in known("verl") if answer("verl", name) is None and name not in tables] == []


def test_every_key_of_the_example_scripts_has_an_answer_and_is_known() -> None:
    assert (len(KEYS), len(OFTEN)) == (334, 158)
    assert unknown_names(KEYS, "verl") == {}
    assert [key for key in KEYS if answer("verl", key) is None] == []


def test_what_scripts_set_often_has_an_answer_by_its_whole_name() -> None:
    without = [key for key in OFTEN if key not in answer("verl", key).names]
    assert without == []


def test_an_answer_has_one_kind_and_a_reason() -> None:
    for one in answers("verl"):
        kinds = [bool(one.to), bool(one.unneeded), bool(one.missing)]
        assert sum(kinds) == 1, one.names
        assert not one.rule or one.to, one.names
        assert not one.values or not one.rule, one.names


def test_every_rule_is_used_and_every_name_of_a_rule_exists() -> None:
    assert {one.rule for one in answers("verl")} - {""} == RULES.keys()


@pytest.mark.parametrize("one", answers("verl"), ids=lambda one: one.names[0])
def test_settings_of_an_answer_exist(one) -> None:
    assert problems(one.to) == []


def test_a_pattern_that_is_no_name_matches_a_setting() -> None:
    """A pattern without a setting would be a mistake, except below tables whose settings are not listed."""
    patterns = [pattern for one in answers("verl") for pattern in one.names if re.search(r"[*?\[]", pattern)]
    names = {*known("verl"), *KEYS}
    unused = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    assert [pattern for pattern in unused if not _is_below_a_table(pattern)] == OLDER


OLDER = [
    "*.ref.*.grad_offload",
    "*.override_transformer_config.pipeline_model_parallel_layout",
    "algorithm.rollout_is_*",
    "algorithm.rollout_rs*",
    "reward.reward_kwargs.overlong_buffer_cfg.*",
]
"""Patterns for settings of other versions of verl and of Megatron-core, which are in no list."""


def _is_below_a_table(pattern: str) -> bool:
    above = pattern.removesuffix(".*")
    return any(fnmatchcase(name, above) for name in known("verl")) or "reward_model.overlong_buffer" in pattern
