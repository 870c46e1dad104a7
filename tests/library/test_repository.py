"""What the repository says about itself: commands, versions, dependencies."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import purerl
from tests.library.rooms import imports

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
    optional = _names(PROJECT["optional-dependencies"]["testing"])
    assert _imported("purerl", "cli") - optional == _names(PROJECT["dependencies"])


def test_versions_are_bounded_here_and_pinned_only_in_the_constraints() -> None:
    every = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    assert [one for one in every if ">=" not in one or "==" in one] == []
    pins = [line for line in _read("constraints/default.txt").splitlines() if not line.startswith("#")]
    assert pins == ["torch==2.13.0"]
