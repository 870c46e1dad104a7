"""docs/how-to/recipes.md: each command is resolved and checked, each block of Python is executed."""

from __future__ import annotations

import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import purerl
from purerl import recipes
from purerl.algos.modifiers import kl_loss
from purerl.config.check import check
from purerl.config.schema import RunConfig
from tests.loop.small import fake

from .test_quickstart import FENCE, ROOT

PAGE = (ROOT / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
BLOCKS = {kind: [code for language, _, code in FENCE.findall(PAGE) if language == kind] for kind in ("sh", "python")}
COMMANDS = [
    line
    for code in BLOCKS["sh"]
    for line in code.replace("\\\n", " ").splitlines()
    if "purerl train" in line and ".toml" not in line
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_a_valid_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_recipe.py").write_text(BLOCKS["python"][-1], encoding="utf-8")
    _, _, recipe, *options = shlex.split(command)
    settings = [value for option, value in pairwise(options) if option == "--set"]
    config = recipes.resolve(recipe, settings)
    check(config)
    assert config.model.path in command or config.prepare_data, "a recipe without prepare_data needs a model"
    if recipe == "my_recipe.py:gsm8k_with_kl":
        assert config.algorithm.modifiers == (kl_loss.Config(coef=0.02),)


def test_the_python_block_gives_the_runs_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[RunConfig] = []
    monkeypatch.setattr(purerl, "train", lambda config, **_: runs.append(config), raising=False)
    exec(compile(BLOCKS["python"][0], "recipes.md", "exec"), {})
    for config in runs:
        check(config)
    assert [(run.model.attention, run.data.validation_fraction) for run in runs] == [
        (None, 0.05),
        ("flash_attention_2", 0.1),
    ]


def test_a_recipe_is_trained_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs, namespace = [], {}
    with monkeypatch.context() as patch:
        patch.setattr(purerl, "train", lambda *args, **kwargs: runs.append((args, kwargs)), raising=False)
        exec(compile(BLOCKS["python"][1], "recipes.md", "exec"), namespace)
    check(namespace["config"])
    assert namespace["config"].rollout.max_tokens == 256
    assert runs == [(("gsm8k",), {"settings": namespace["settings"], "directory": "runs/short"})]


def test_callback_of_the_page_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = BLOCKS["python"][2].replace('"addition"', 'small(), directory="run"')
    exec(compile(code, "recipes.md", "exec"), {"small": lambda: fake(max_steps=2)})
    assert sum(line.startswith("accuracy ") for line in capsys.readouterr().out.splitlines()) == 2


def test_every_recipe_is_on_the_page() -> None:
    assert [name for name in recipes.names() if f"| `{name}` |" not in PAGE] == []
