"""`purerl serve`: which program it becomes, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.loop.train import train
from purerl.recipes.addition import addition
from purerl_cli.main import app
from tests.backends.tiny import write_model
from tests.loop.small import small_real
from tests.serving.interpreter import ENGINE_PYTHON

PYTHON = ("--generator-settings", f"server.python={ENGINE_PYTHON}")


class _ReplacedError(Exception):
    """Instead of the program that the process becomes."""


def _serve(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[list[str], dict[str, str]]:
    """The program that the command becomes, and its environment."""
    programs = []

    def become(program: str, arguments: list[str], environment: dict[str, str]) -> None:
        programs.append((arguments, environment))
        raise _ReplacedError

    monkeypatch.setattr(os, "execvpe", become)
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert isinstance(result.exception, _ReplacedError), result.output
    return programs[0]


def _refused(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    return result


@pytest.mark.parametrize(
    ("kind", "module"), [("vllm", "vllm.entrypoints.cli.main"), ("sglang", "sglang.launch_server")]
)
def test_model_is_served_by_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, module: str) -> None:
    model = write_model(tmp_path)
    settings = ("--generator-settings", f"kind={kind}", "--generator-settings", "server.tensor_parallel_size=2")
    program, environment = _serve(monkeypatch, model, *PYTHON, *settings, "--host", "0.0.0.0", "--port", 9000)
    assert program[:3] == [ENGINE_PYTHON, "-m", module]
    assert model in program
    for option, value in {"--host": "0.0.0.0", "--port": "9000", "--dtype": "auto"}.items():
        assert program[program.index(option) + 1] == value
    assert environment.keys() >= os.environ.keys()


def test_run_is_served_with_its_final_model_or_that_of_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(small_real(max_steps=2, trainer=addition().trainer), directory=run)
    assert str(run / "final") in _serve(monkeypatch, run, *PYTHON)[0]
    for _ in range(2):
        program, _ = _serve(monkeypatch, run, "--step", "latest", *PYTHON)
        [folder] = (run / "export").iterdir()
        assert str(folder) in program
        assert (folder / "model.safetensors").exists()


def test_mistakes_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    assert "vllm is not installed in the environment of purerl" in _refused(model).stderr
    settings = ("--generator-settings", "kind=fake")
    assert "an engine that is a server" in _refused(model, *settings).stderr
    settings = ("--generator-settings", 'server.urls=["http://host:1"]')
    assert "server.urls has no effect" in _refused(model, *settings).stderr
    assert "--step has no effect" in _refused(model, "--step", "3", *PYTHON).stderr
