"""What the repository says about itself: commands, versions, dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import purerl
from purerl.algos import ppo
from purerl.loop.train import train
from tests.library.import_rules import imports
from tests.loop.small import fake

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~!; ]", one)[0].replace("-", "_") for one in requirements}


def _imported(*folders: str) -> set[str]:
    """Every package that the files in `folders` name, at their top or in functions."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {
        one.module.partition(".")[0] for path in files for one in imports(path.read_text(encoding="utf-8"), "purerl")
    }
    return found - set(sys.stdlib_module_names) - {"purerl", "purerl_cli"}


def test_ci_runs_the_second_command_of_the_readme() -> None:
    command = _read(".ci/run").splitlines()[-1]
    assert command.endswith("nox")
    assert command in _read("README.md").splitlines()
    assert command in _read("CONTRIBUTING.md").splitlines()


def test_the_changelog_begins_with_this_version() -> None:
    assert re.findall(r"^## (\S+)", _read("CHANGELOG.md"), re.MULTILINE)[0] == purerl.__version__


def test_what_is_imported_is_what_is_required() -> None:
    extras = {name: _names(packages) for name, packages in PROJECT["optional-dependencies"].items() if name != "dev"}
    optional = {"mlflow"}.union(*extras.values())  # mlflow-skinny is imported as mlflow
    assert _imported("purerl", "cli") - optional == _names(PROJECT["dependencies"])


def test_versions_are_bounded_here_and_pinned_only_in_the_constraints() -> None:
    optional = PROJECT["optional-dependencies"]
    every = [*PROJECT["dependencies"], *(one for extra in optional.values() for one in extra)]
    loose = [one for one in every if ">=" not in one or "==" in one]
    assert [one for one in loose if not one.startswith("purerl[")] == [], "an extra may hold others"
    pins = [line for line in _read("constraints/default.txt").splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [line for line in pins if "==" not in line] == []


def test_the_readmes_script_is_the_example_and_it_learns() -> None:
    script = _read("README.md").partition("```python\nimport torch")[2].partition("```")[0]
    example = _read("examples/algos_alone.py").partition("import torch")[2]
    assert script == example
    assert len([line for line in ("import torch" + script).splitlines() if line.strip()]) == 15
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "algos_alone.py"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[3, 1, 4, 1, 5]\n"


def test_every_metric_of_a_step_is_explained(tmp_path: Path) -> None:
    summary = train(fake(algorithm=ppo.Config(kl_reward_coef=0.01)), directory=tmp_path / "run")
    lines = (summary.directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    explained = _read("docs/metrics.md")
    for name in {name for line in lines for name in json.loads(line)}:
        general = re.sub(r"^critic/.*|^policy/loss/.*|^reward/digits$", "", name)
        assert f"`{general}`" in explained or not general, name
