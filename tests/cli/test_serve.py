"""`purerl serve`: which program it becomes, and what it refuses."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purerl.backends.serving import settings
from purerl.backends.serving.access import TOKEN
from purerl.backends.serving.versions import can_import
from purerl.loop.train import train
from purerl.recipes.addition import addition
from purerl_cli.main import app
from purerl_cli.serve import _check_port
from tests.backends.tiny import write_model
from tests.loop.small import small_real
from tests.serving.interpreter import ENGINE_PYTHON

PYTHON = ("--generator-settings", f"server.python={ENGINE_PYTHON}")
CHECK_PORT = "purerl_cli.serve._check_port"


_can_import = functools.cache(can_import)
"""The answer of `ENGINE_PYTHON` for each engine, from one process each."""


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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of the user, in which tokens are written, and no token in the environment."""
    monkeypatch.setattr(settings, "can_import", _can_import)
    monkeypatch.setattr(CHECK_PORT, lambda host, port: None)  # another process of this host may have the port
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    for name in (TOKEN, f"{TOKEN}_FILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize(("kind", "module"), [("vllm", "purerl_server"), ("sglang", "purerl_sglang")])
def test_model_is_served_by_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, module: str) -> None:
    model = write_model(tmp_path)
    monkeypatch.setenv(TOKEN, "secret-" * 3)
    options = ("--generator-settings", f"kind={kind}", "--generator-settings", "server.tensor_parallel_size=2")
    program, environment = _serve(monkeypatch, model, *PYTHON, *options, "--host", "0.0.0.0", "--port", 9000)
    assert program[:3] == [ENGINE_PYTHON, "-m", module]
    assert model in program
    for option, value in {"--host": "0.0.0.0", "--port": "9000", "--dtype": "auto"}.items():
        assert program[program.index(option) + 1] == value
    assert environment.keys() >= os.environ.keys()
    assert environment[TOKEN] == "secret-" * 3
    assert not any("secret-" in word for word in program)


def test_server_on_loopback_makes_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    """Each start makes another one. It is in a file of the user, and is not shown."""
    model, tokens = write_model(tmp_path), []
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        program, environment = _serve(monkeypatch, model, *PYTHON, "--host", host, "--port", 9000)
        [file] = (cache / "purerl/tokens").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == environment[TOKEN]
        assert not any(environment[TOKEN] in word for word in program)
        tokens.append(environment[TOKEN])
    assert len(set(tokens)) == 4
    assert all(len(token) == 64 for token in tokens)


def test_command_that_asks_the_server_names_the_file_with_the_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, shown = write_model(tmp_path), []
    monkeypatch.setattr("typer.echo", lambda text, **options: shown.append(text))
    _, environment = _serve(monkeypatch, model, *PYTHON, "--port", 9000)
    [file] = (cache / "purerl/tokens").iterdir()
    assert shown[1].endswith(f'"Authorization: Bearer $(cat {file})" http://127.0.0.1:9000/v1/models')
    monkeypatch.setenv(TOKEN, environment[TOKEN])
    _serve(monkeypatch, model, *PYTHON, "--host", "::", "--port", 9000)
    assert shown[3].endswith(f'"Authorization: Bearer ${TOKEN}" http://localhost:9000/v1/models')
    assert not any(environment[TOKEN] in text for text in shown)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", "127.evil.org"])
def test_other_addresses_need_a_token(tmp_path: Path, host: str) -> None:
    error = _refused(write_model(tmp_path), *PYTHON, "--host", host).stderr
    assert f"--host {host}" in error
    assert f"set {TOKEN}" in error


def test_token_comes_from_a_private_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, file = write_model(tmp_path), tmp_path / "token"
    file.write_text("a-token-of-a-file\n")
    file.chmod(0o600)
    monkeypatch.setenv(f"{TOKEN}_FILE", str(file))
    for host in ("0.0.0.0", "127.0.0.1"):
        _, environment = _serve(monkeypatch, model, *PYTHON, "--host", host)
        assert environment[TOKEN] == "a-token-of-a-file"
    link = tmp_path / "link"
    link.symlink_to(file)
    for mode, path in ((0o644, file), (0o600, link), (0o600, tmp_path / "nothing")):
        file.chmod(mode)
        monkeypatch.setenv(f"{TOKEN}_FILE", str(path))
        assert f"{TOKEN}_FILE" in _refused(model, *PYTHON).stderr
    monkeypatch.delenv(f"{TOKEN}_FILE")
    for token in ("short", "a token with spaces in it", "a-token-with-a-line\nin-it"):
        monkeypatch.setenv(TOKEN, token)
        error = _refused(model, *PYTHON).stderr
        assert "at least 16 visible ASCII characters" in error
        assert token not in error


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
    for setting, message in (
        ("kind=fake", "an engine that is a server"),
        ('server.urls=["http://host:1"]', "server.urls has no effect"),
    ):
        assert message in _refused(model, "--generator-settings", setting).stderr
    assert "--step has no effect" in _refused(model, "--step", "3", *PYTHON).stderr


def test_port_in_use_is_refused_before_the_engine_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECK_PORT, _check_port)
    path = write_model(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = _refused(path, *PYTHON, "--port", port)
    assert f"--host 127.0.0.1 --port {port}\n  got:  [Errno 98] Address already in use" in result.output
    assert "set --port to another one" in result.output


def test_address_of_another_host_is_refused_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CHECK_PORT, _check_port)
    monkeypatch.setenv(TOKEN, 32 * "0")
    result = _refused(write_model(tmp_path), *PYTHON, "--host", "192.0.2.1", "--port", 8000)
    assert "--host 192.0.2.1 --port 8000\n  got:  [Errno 99] Cannot assign requested address" in result.output
