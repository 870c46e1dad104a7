"""`purerl train --dry-run` with a section `environment`: nothing is imported or started unless code may be run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.config.structure import dumps
from purerl.recipes import resolve
from purerl_cli.main import app
from tests.recipes.made import write_model, write_problems

CODE = '''
from pathlib import Path

from purerl.envs.protocol import Observation

Path(__file__).with_name("was-imported").touch()


class Game:
    def __init__(self, size=3):
        self.size = size

    def reset(self, example, seed):
        Path(__file__).with_name("was-started").touch()
        return Observation(messages=[{"role": "user", "content": "?"}])

    def step(self, text, calls):
        return Observation(reward=1.0, done=True)

    def close(self):
        pass


class Broken(Game):
    def reset(self, example, seed):
        raise RuntimeError("no board")


class WithoutClose:
    def reset(self, example, seed): ...

    def step(self, text, calls): ...


class WithoutSeed:
    def reset(self, example): ...

    def step(self, text, calls): ...

    def close(self): ...


def make(size):
    return Game(size)


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def without_hints(first, second):
    """Add two numbers."""


def without_text(first: int): ...


class NoTools:
    def __init__(self): ...
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, its data, and a file with environments and tools."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write_model(tmp_path / "model")
    write_problems(tmp_path)
    (tmp_path / _file(tmp_path)).write_text(CODE)
    return tmp_path


def _file(folder: Path) -> str:
    return f"games_{folder.name.replace('-', '_')}.py"


def _dry_run(folder: Path, environment: str, *arguments: str) -> Result:
    """A dry run of a TOML file with this section `environment`, in which FILE is the file with the code."""
    settings = [
        "model=model",
        "data=problems.parquet",
        "max_steps=2",
        "rollout.max_tokens=16",
        "evaluate.max_tokens=16",
    ]
    config = dumps(resolve("gsm8k", [*settings, "trainer.mixed_precision=off", "data.validation_fraction=0.2"]))
    (folder / "run.toml").write_text(f"{config}\n[environment]\n{environment.replace('FILE', _file(folder))}\n")
    return CliRunner().invoke(app, ["train", "run.toml", "--dry-run", *arguments])


def test_nothing_is_imported_or_started_without_check_code(folder: Path) -> None:
    result = _dry_run(folder, 'factory = "FILE:Game"\nkwargs = {size = 4}')
    assert result.exit_code == 0, result.output
    assert f"# not checked without running code: environment {_file(folder)}:Game\n" in result.stdout
    assert "kwargs = {size = 4}" in result.stdout or "size = 4" in result.stdout
    assert not (folder / "was-imported").exists()
    checked = _dry_run(folder, 'factory = "FILE:Game"', "--check-code")
    assert checked.exit_code == 0, checked.output
    assert "not checked" not in checked.stdout
    assert (folder / "was-started").exists()


def test_tool_of_purerl_beside_an_own_one_imports_only_the_first(folder: Path) -> None:
    result = _dry_run(folder, 'tools = ["purerl.system.files:write_atomically", "FILE:add"]')
    assert "write_atomically" in result.output
    assert not (folder / "was-imported").exists()


def test_servers_are_not_contacted_but_listed(folder: Path) -> None:
    result = _dry_run(folder, 'url = "http://127.0.0.1:9"')
    assert result.exit_code == 0, result.output
    assert "# not checked without running code: environment http://127.0.0.1:9\n" in result.stdout
    refused = _dry_run(folder, 'mcp = ["no-such-program --now"]')
    assert refused.exit_code == 2
    assert "error: environment" in refused.stderr
    assert "mcp" in refused.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ('factory = "FILE:Gme"', "cannot find 'FILE:Gme'"),
        ('factory = "FILE:Game"\nkwargs = {sise = 3}', "unexpected keyword argument 'sise'"),
        ('factory = "FILE:make"', "missing a required argument: 'size'"),
        ('factory = "FILE:WithoutClose"', "got:  a class without close"),
        ('factory = "FILE:WithoutSeed"', "need: reset(example, seed), step(text, calls)"),
        ('tools = ["FILE:without_hints"]', "the parameter 'first' of the tool 'without_hints'"),
        ('tools = ["FILE:without_text"]', "the tool 'without_text' has no description"),
        ('tools = ["FILE:NoTools"]', "got:  a class without public methods"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("--check-code",)])
def test_source_shows_what_importing_it_shows(
    environment: str, message: str, arguments: tuple[str, ...], folder: Path
) -> None:
    result = _dry_run(folder, environment, *arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message.replace("FILE", _file(folder)) in result.stderr
    assert (folder / "was-imported").exists() == bool(arguments)


def test_environment_that_cannot_start_is_refused_with_its_traceback(folder: Path) -> None:
    result = _dry_run(folder, 'factory = "FILE:Broken"', "--check-code")
    assert (result.exit_code, "RuntimeError: no board" in result.stderr) == (1, True), result.output
