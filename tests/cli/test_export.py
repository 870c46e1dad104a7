"""`purerl export`: the model of a checkpoint, in a directory and on a hub that runs in this process."""

from __future__ import annotations

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from attrs import define, field
from typer.testing import CliRunner, Result

from purerl.loop.train import train
from purerl.store.settings import Checkpoint
from purerl_cli.main import app
from tests.backends.saved import saved_tensors
from tests.loop.runs import train_until
from tests.loop.small import small_real


def _export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run of a real model with the checkpoints 1 and 2, of which 1 is the best."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    settings = Checkpoint(every=1, keep=2, best="rollout/sampled")  # equal in all steps: the first one is the best
    train_until(2, small_real(4, checkpoint=settings, evaluate=None), directory=directory)
    return directory


@pytest.mark.parametrize(("step", "number"), [(None, 2), ("latest", 2), ("best", 1), ("1", 1), ("000002", 2)])
def test_model_of_a_checkpoint_can_be_loaded(step: str | None, number: int, run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = tmp_path / "model"
    result = _export(run, *(["--step", step] if step else []), "--output", output)
    assert (result.exit_code, result.stdout) == (0, f"{output}, in Hugging Face's format\n"), result.output
    state = AutoModelForCausalLM.from_pretrained(output).state_dict()
    saved = saved_tensors(run / "checkpoints" / f"{number:06d}" / "policy", "weights.")
    assert len(saved) > 10
    for name, weight in saved.items():
        [exported] = [value for key, value in state.items() if name.endswith(key)]
        assert torch.equal(exported, weight), name
    assert AutoTokenizer.from_pretrained(output).encode("12+3=") == AutoTokenizer.from_pretrained(
        run / "tokenizer"
    ).encode("12+3=")


def test_model_is_exported_into_the_run_by_default_and_never_overwritten(run: Path) -> None:
    assert _export(run).exit_code == 0
    assert (run / "export" / "000002" / "model.safetensors").exists()
    again = _export(run)
    assert again.exit_code == 1
    assert "got:  it exists already\n  need: a new or an empty directory\n  do:   name another one" in again.stderr


def test_exported_model_of_a_finished_run_is_its_final_model(tmp_path: Path) -> None:
    summary = train(small_real(2, evaluate=None), directory=tmp_path / "run")
    assert _export(summary.directory, "--output", tmp_path / "model").exit_code == 0
    names = [path.name for path in sorted(summary.model.iterdir())]
    assert names == [path.name for path in sorted((tmp_path / "model").iterdir())]
    for name in names:
        assert (tmp_path / "model" / name).read_bytes() == (summary.model / name).read_bytes(), name


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--step", "7"], 1, "got:  no complete checkpoint of step 7\n  need: one of: 1, 2"),
        (["--step", "last"], 2, "error: --step\n  got:  'last'\n  need: a number, latest or best"),
        (["--private"], 2, "error: --private has no effect\n  need: --push-to-hub"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], status: int, message: str, run: Path) -> None:
    result = _export(run, *arguments)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


def test_run_without_its_tokenizer_is_refused_before_the_model_is_loaded(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "tokenizer")
    result = _export(copy, "--output", tmp_path / "model")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be exported\n  got:  no directory tokenizer" in result.stderr
    assert not [*tmp_path.glob("model*")]


def test_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    result = _export(tmp_path)
    assert result.exit_code == 1
    assert "got:  no config.toml\n  need: the directory of a run" in result.stderr


# --- the hub -----------------------------------------------------------------------------------------------------


@define
class _Hub:
    """A fake hub that records its calls: repositories that were created, the token, and the files of the commit."""

    created: list[dict[str, Any]] = field(factory=list)
    tokens: set[str | None] = field(factory=set)
    files: dict[str, bytes] = field(factory=dict)
    accepts: bool = True


def _reply(hub: _Hub, address: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer to a POST request."""
    if not hub.accepts:
        return 403, {"error": "no permission to write"}
    if path == "/api/repos/create":
        hub.created.append(json.loads(body))
        return 200, {"url": f"{address}/me/model"}
    if path.endswith("/preupload/main"):
        names = [file["path"] for file in json.loads(body)["files"]]
        return 200, {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
    if path.endswith("/commit/main"):
        files = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
        hub.files.update({file["path"]: base64.b64decode(file["content"]) for file in files})
        return 200, {"commitUrl": f"{address}/me/model/commit/0", "commitOid": "0" * 40}
    return 200, {}


def _handler(hub: _Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"siblings": [], "sha": "0" * 40, "id": "me/model"})

        def do_POST(self) -> None:
            hub.tokens.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self._answer(*_reply(hub, f"http://{self.headers['Host']}", self.path, body))

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hub]:
    """A hub at a local address, and a token. The library has read its environment already, so both are set in it."""
    recorded = _Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(recorded))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield recorded
    server.shutdown()
    server.server_close()


def test_model_is_uploaded_to_a_private_repository(hub: _Hub, run: Path, tmp_path: Path) -> None:
    result = _export(run, "--step", "1", "--push-to-hub", "me/model", "--private", "--output", tmp_path / "model")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith("/me/model")
    [repository] = hub.created
    assert repository == {"name": "model", "organization": "me", "visibility": "private"}
    assert hub.tokens == {"Bearer hf_secret"}
    written = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert written.keys() >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert {name: hub.files[name] for name in written} == written


def test_hub_that_refuses_the_upload_is_reported(hub: _Hub, run: Path) -> None:
    hub.accepts = False
    result = _export(run, "--push-to-hub", "me/model")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: 'me/model' cannot be uploaded to http://127.0.0.1:")
    assert "do:   set HF_TOKEN to a token with permission to write" in result.stderr


def test_upload_without_credentials_is_refused_before_the_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    result = _export(run, "--push-to-hub", "me/model", "--output", tmp_path / "model")
    assert result.exit_code == 2
    assert "error: --push-to-hub\n  got:  no credentials of the hub\n  need: a token" in result.stderr
    assert not (tmp_path / "model").exists()
