"""The packages that the adapters are tested with: all of them are there in the session `adapters`."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from purerl.adapters.gymnasium import GymnasiumEnvironment
from purerl.adapters.reasoning_gym import write
from purerl.adapters.textarena import TextArenaEnvironment
from purerl.adapters.verifiers import VerifiersWorkflow, write_tasks
from purerl.errors import ConfigError
from purerl.protocols import Sampling
from purerl.system.installation import install_command

ROOT = Path(__file__).parents[2]
MODULES = ("gymnasium", "mcp", "openai", "reasoning_gym", "renderers", "textarena", "trl", "verifiers.v1")


def _pins() -> dict[str, str]:
    """The version of each package that the session installs."""
    requirements = (ROOT / "tests/adapters/requirements.txt").read_text(encoding="utf-8")
    session = (ROOT / "noxfile.py").read_text(encoding="utf-8").partition("def adapters(")[2].partition("\n@nox")[0]
    return dict(re.findall(r"([\w-]+)==([\w.]+)", requirements + session))


@pytest.mark.skipif("PURERL_TEST_ADAPTERS" not in os.environ, reason="only in the session `adapters`")
def test_packages_are_installed_in_their_versions() -> None:
    """Without this test, the tests of a package that cannot be imported would be skipped."""
    assert {module.partition(".")[0].replace("_", "-") for module in MODULES} <= _pins().keys()
    assert {name: version(name) for name in _pins()} == _pins()
    for module in MODULES:
        import_module(module)


def test_versions_in_the_documentation_are_those_that_are_tested() -> None:
    page = (ROOT / "docs/how-to/adapters.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| \[([\w-]+)\]\([^|]*\| ([\d.]+) \|", page, re.MULTILINE)
    assert len(table) >= 6
    assert {name: _pins()[name.lower()] for name, _ in table} == dict(table)


@pytest.mark.parametrize(
    ("module", "extra", "function"),
    [
        ("gymnasium", "gymnasium", lambda path: GymnasiumEnvironment("FrozenLake-v1")),
        ("reasoning_gym", "reasoning-gym", lambda path: write(path / "a.parquet", {"gcd": {}}, size=1, seed=0)),
        ("textarena", "textarena", lambda path: TextArenaEnvironment("Nim-v0")),
        ("verifiers.v1", "verifiers", lambda path: write_tasks(path / "a.parquet", {})),
        ("verifiers.v1", "verifiers", lambda path: VerifiersWorkflow({}, tokenizer="", sampling=Sampling(), samples=1)),
    ],
)
def test_package_that_is_missing_is_a_config_error(
    module: str, extra: str, function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=re.escape(install_command(extra))):
        function(tmp_path)
