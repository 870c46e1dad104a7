"""The pages on each way to train: commands are valid runs, rows of data can be read, figures have three seeds."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import fields_dict

from purerl import recipes
from purerl.config.check import check
from purerl.config.requirements import requirements_of
from purerl.data.open import read_data
from purerl.data.settings import Data
from purerl.plugins import find, names

from .figures import figures
from .test_quickstart import FENCE, ROOT

PAGES = ("sft.md", "dpo.md", "kto.md", "reward_models.md", "distillation.md", "ppo.md")
TEXTS = {page: (ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8") for page in PAGES}


def _blocks(page: str, language: str) -> list[str]:
    return [code for kind, _, code in FENCE.findall(TEXTS[page]) if kind == language]


COMMANDS = [
    (page, line)
    for page in PAGES
    for code in _blocks(page, "sh")
    for line in code.replace("\\\n", " ").splitlines()
    if line.startswith("purerl train")
]


def _settings(command: str) -> tuple[str, list[str]]:
    """The recipe of a command, and its settings."""
    _, _, recipe, *options = shlex.split(command)
    settings = [value for option, value in pairwise(options) if option == "--set"]
    rewards = [value for option, value in pairwise(options) if option == "--reward"]
    return recipe, [*settings, *([f"rewards=[{', '.join(map(_toml, rewards))}]"] if rewards else [])]


def _toml(reward: str) -> str:
    return reward if reward.startswith("{") else f'"{reward}"'


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_a_valid_run(page: str, command: str) -> None:
    recipe, settings = _settings(command)
    config = recipes.resolve(recipe, settings)
    check(config)
    assert config.algorithm.base is not None
    wanted = {"dpo.md": "dpo", "kto.md": "kto", "sft.md": "sft", "ppo.md": "ppo", "distillation.md": "opd"}
    kinds = {str(recipes.resolve(*_settings(line)).algorithm) for name, line in COMMANDS if name == page}
    assert any(kind.startswith(wanted.get(page, "reward_model")) for kind in kinds)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_has_a_command_for_a_cpu_and_one_for_a_model_of_the_user(page: str) -> None:
    commands = [command for name, command in COMMANDS if name == page]
    assert any(command.startswith("purerl train postfix_") for command in commands)
    assert any(re.search(r"--set model=\S+ --set data=", command) for command in commands)


@pytest.mark.parametrize("page", PAGES)
def test_the_rows_of_data_can_be_read(page: str, tmp_path: Path) -> None:
    [code] = _blocks(page, "json")
    purposes = {
        "sft.md": "demonstrations",
        "dpo.md": "preferences",
        "kto.md": "labels",
        "reward_models.md": "preferences",
    }
    for number, line in enumerate(code.splitlines()):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(f"{json.dumps(json.loads(line))}\n", encoding="utf-8")
        examples = read_data(Data(files=(str(path),)), purposes.get(page, "prompts"))
        assert sum(table.num_rows for table in examples.tables) == 1


@pytest.mark.parametrize(
    ("page", "before", "after", "bound"),
    [
        ("sft.md", None, "after 160 steps", 0.85),
        ("dpo.md", "accuracy before", "accuracy after 20 steps", 0.35),
        ("dpo.md", None, "held-out pairs after 20 steps", 0.8),
        ("kto.md", "accuracy before", "after 20 steps", 0.35),
        ("reward_models.md", None, "reward model, held-out pairs", 0.85),
        ("reward_models.md", "accuracy of the policy before", "after 40 steps", 0.35),
        ("distillation.md", "student before", "after 50 steps", 0.5),
        ("ppo.md", "accuracy before", "after 40 steps", 0.7),
    ],
)
def test_the_model_of_each_of_three_seeds_reaches_a_bound_that_it_does_not_meet_before_training(
    page: str, before: str | None, after: str, bound: float
) -> None:
    """Without a column before training, a model that knows nothing has an accuracy of 0, or of a half on pairs."""
    assert figures(page, "seed") == [0, 1, 2]
    reached = figures(page, after)
    assert len(reached) == 3
    assert all(bound + 0.05 < value <= 1 for value in reached)
    assert all(value < bound - 0.1 for value in (figures(page, before) if before else [0.5]))


@pytest.mark.parametrize(
    ("page", "column"),
    [
        ("sft.md", "after 160 steps"),
        ("dpo.md", "accuracy after 20 steps"),
        ("kto.md", "after 20 steps"),
        ("reward_models.md", "after 40 steps"),
        ("distillation.md", "after 50 steps"),
        ("ppo.md", "after 40 steps"),
    ],
)
def test_the_lines_that_a_page_shows_are_those_of_the_default_seed(page: str, column: str) -> None:
    """The last accuracy that is printed is that of seed 0 in the table."""
    printed = re.findall(
        r"^postfix_\w+: step \d+(?:/\d+)? .*\baccuracy (\S+)", "".join(_blocks(page, "text")), re.MULTILINE
    )
    assert float(printed[-1]) == pytest.approx(figures(page, column)[0], abs=0.0051)


def test_a_column_that_no_table_has_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"dpo.md has no column 'speed'"):
        figures("dpo.md", "speed")


@pytest.mark.parametrize("page", PAGES)
def test_settings_of_the_page_exist(page: str) -> None:
    """Names after ``algorithm.`` are settings of the algorithm of the page, modifiers, or the keys of a composition."""
    names_in_code = set(re.findall(r"`algorithm\.(\w+)", TEXTS[page]))
    bases = [recipes.resolve(*_settings(command)).algorithm.base for name, command in COMMANDS if name == page]
    known = {name for base in bases for name in fields_dict(type(base))} | {"kind", "modifiers"} | {*names("modifier")}
    assert names_in_code <= known


@pytest.mark.parametrize("page", PAGES)
def test_metrics_of_the_page_are_those_of_its_algorithms(page: str) -> None:
    from docs.generate.metrics import metrics

    algorithms = [
        requirements_of(recipes.resolve(*_settings(command))).algorithm for name, command in COMMANDS if name == page
    ]
    opposite = find("algorithm", "opd_top_k").algorithm()
    logged = {name for algorithm in (*algorithms, opposite) for name in metrics(algorithm)}
    named = set(re.findall(r"`((?:policy|critic)/\w+)`", TEXTS[page]))
    assert named - {"critic/explained_variance"} <= logged
