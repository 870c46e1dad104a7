"""Runs whose servers cannot be used: the exit status of `purerl train`, and the sentence that it prints."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from purerl.backends.serving.access import TOKEN
from purerl.backends.transfer.engine.purerl_model import describe_vocabulary
from purerl.models.pretrained import config_of
from purerl.models.tokenizer import load_tokenizer
from purerl.settings import Model
from purerl_cli.main import app
from tests.recipes import made

KEY = "0123456789abcdef"
PATHS = ("/inference/v1/generate", "/pause", "/resume", "/collective_rpc")


class _Engine(BaseHTTPRequestHandler):
    """Answers GET requests with `answers`, by their path, as vLLM or SGLang does; nothing else is expected."""

    answers: dict[str, Any]
    posted: list[str]

    def do_GET(self) -> None:
        name = self.path.partition("?")[0]
        self._answer(200 if name in self.answers else 404, self.answers.get(name))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.posted.append(self.path)
        self._answer(200 if self.path in self.answers else 404, self.answers.get(self.path))

    def _answer(self, status: int, answer: Any) -> None:
        is_known = self.headers["Authorization"] == f"Bearer {KEY}"
        text = json.dumps(answer).encode()
        self.send_response(status if is_known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""


@contextmanager
def _engine(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The address of the engine, and the paths of its POST requests."""
    handler = type("Handler", (_Engine,), {"answers": {"/health": {}, **answers}, "posted": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.posted
        server.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, str]:
    """The model and the data of a run."""
    folder = tmp_path_factory.mktemp("files")
    return Model(made.write_model(folder / "model")), made.write_problems(folder)


def _described(model: Model, **changes: Any) -> dict[str, Any]:
    """The answer of purerl's program about the model of a server: `model` with `changes`."""
    config = json.loads((Path(model.path) / "config.json").read_text())
    vocabulary = load_tokenizer(model).get_vocab()
    return {"config": {**config, **changes}, "vocabulary": describe_vocabulary(vocabulary)}


def _vllm(described: dict[str, Any] | None, *, version: str = "0.32.0", **lease: Any) -> dict[str, Any]:
    model = {"logprobs_mode": "processed_logprobs", "max_model_len": 2048}
    parallel = {"worker_extension_cls": "purerl_vllm.Worker"}
    info = {"vllm_config": {"model_config": model, "parallel_config": parallel}}
    own = {} if described is None else {"/purerl/model": described}
    return {
        "/openapi.json": {"paths": dict.fromkeys(PATHS)},
        "/version": {"version": version},
        "/server_info": info,
        "/purerl/lease": lease,
        **own,
    }


def _sglang(described: dict[str, Any] | None, *, version: str = "0.5.20", kind: str = "qwen3") -> dict[str, Any]:
    info = {"version": version, "custom_weight_loader": ["purerl_receiver.load_into_sglang"]}
    own = {} if described is None else {"/purerl/model": described}
    return {"/server_info": info, "/model_info": {"model_type": kind}, "/purerl/lease": {}, **own}


def _train(folder: Path, files: tuple[Model, str], kind: str, url: str, *settings: str) -> tuple[int, str, str]:
    """The exit status of a run, its message, and all that it has printed."""
    model, data = files
    named = [f"model={model.path}", f"data={data}", f"test={data}", f"generator.kind={kind}"]
    named += [f'generator.server.urls=["{url}"]', "trainer.mixed_precision=off", *settings]
    options = [text for setting in named for text in ("--set", setting)]
    done = CliRunner().invoke(app, ["train", "gsm8k", "--directory", str(folder / "run"), *options])
    return done.exit_code, done.output[done.output.find("error: ") :], done.output


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, KEY)


OTHER_VERSION = "and {} is needed: routes and arguments differ between versions"


@pytest.mark.parametrize(
    ("kind", "version", "need"),
    [
        ("vllm", "0.33.0", "vllm 0.32"),
        ("vllm", "0.31.9", "vllm 0.32"),
        ("vllm", "1.0", "vllm 0.32"),
        ("sglang", "0.5.23", "sglang 0.5.20"),
        ("sglang", "0.6.0", "sglang 0.5.20"),
    ],
)
def test_server_of_another_version_ends_the_run_before_models_are_loaded(
    tmp_path: Path, files: tuple[Model, str], kind: str, version: str, need: str
) -> None:
    answers = (_vllm if kind == "vllm" else _sglang)(_described(files[0]), version=version)
    with _engine(answers) as (url, posted):
        status, message, _ = _train(tmp_path, files, kind, url)
    assert status == 1
    assert f"error: the {kind} server at {url} cannot be used" in message
    assert f"got:  {kind} {version}, {OTHER_VERSION.format(need)}" in message
    assert posted == []
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 128}, "its hidden_size is 128 in place of 64"),
        ({"num_hidden_layers": 7}, "its num_hidden_layers is 7 in place of"),
        ({"model_type": "llama"}, "its architecture is 'llama' in place of 'qwen3'"),
        ({"rms_norm_eps": 0.5}, "its rms_norm_eps is 0.5 in place of"),
        ({"tie_word_embeddings": None}, "its tie_word_embeddings is"),
        ({"vocab_size": 5, "num_attention_heads": 64}, "its vocab_size is 5 in place of .*; 1 other settings differ"),
    ],
)
def test_server_of_another_model_ends_the_run_before_models_are_loaded(
    tmp_path: Path, files: tuple[Model, str], changes: dict[str, Any], words: str
) -> None:
    tied = config_of(files[0]).tie_word_embeddings
    changes = {**changes, **({"tie_word_embeddings": not tied} if "tie_word_embeddings" in changes else {})}
    kind, answers = ("sglang", _sglang) if "hidden_size" in changes else ("vllm", _vllm)
    with _engine(answers(_described(files[0], **changes))) as (url, posted):
        status, message, _ = _train(tmp_path, files, kind, url)
    assert status == 1
    assert re.search(f"cannot be used\n  got:  another model than '{files[0].path}': {words}", message)
    assert posted == []


@pytest.mark.parametrize("size", [None, 7])
def test_server_of_another_tokenizer_ends_the_run(tmp_path: Path, files: tuple[Model, str], size: int | None) -> None:
    described = _described(files[0])
    own = described["vocabulary"]
    described["vocabulary"] = {"size": size or own["size"], "digest": "another"}
    words = f"7 tokens in place of {own['size']}" if size else f"its {own['size']} ids mean other tokens"
    with _engine(_vllm(described)) as (url, _):
        status, message, _ = _train(tmp_path, files, "vllm", url)
    assert status == 1
    assert f"got:  another tokenizer than that of '{files[0].path}': {words}" in message


def test_server_that_purerl_does_not_run_shows_its_tokenizer_by_a_text(
    tmp_path: Path, files: tuple[Model, str]
) -> None:
    answers = _vllm(None) | {"/tokenize": {"tokens": [100_001, 100_002, 100_003]}}
    with _engine(answers) as (url, posted):
        status, message, _ = _train(tmp_path, files, "vllm", url, "generator.server.weight_transfer=directory")
    assert status == 1
    assert "a text has [100001, 100002, 100003] in place of [" in message
    assert posted == ["/tokenize"]


def test_sglang_of_another_architecture_without_purerls_program(tmp_path: Path, files: tuple[Model, str]) -> None:
    with _engine(_sglang(None, kind="llama")) as (url, _):
        status, message, _ = _train(tmp_path, files, "sglang", url)
    assert status == 1
    assert "its architecture is 'llama' in place of 'qwen3'" in message


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        ("vllm", {}),
        ("vllm", {"/openapi.json": "a page"}),
        ("vllm", {"/openapi.json": {"openapi": "3.1"}}),
        ("vllm", {"/openapi.json": {"paths": dict.fromkeys(PATHS)}, "/version": ["0.32"]}),
        ("sglang", {}),
        ("sglang", {"/server_info": ["0.5.20"]}),
        ("sglang", {"/server_info": None}),
    ],
)
def test_server_that_is_no_engine_ends_the_run(
    tmp_path: Path, files: tuple[Model, str], kind: str, answers: dict[str, Any]
) -> None:
    with _engine(answers) as (url, _):
        status, message, _ = _train(tmp_path, files, kind, url)
    assert status == 1
    assert re.search(f"the {kind} server at {url} cannot be used\n  got:  no ({kind} server|version)", message)


def test_server_that_another_run_uses_ends_the_run_before_models_are_loaded(
    tmp_path: Path, files: tuple[Model, str]
) -> None:
    holder = {"run": None, "name": "/runs/other, process 5 on host", "idle": 11.5, "expires_in": 48.5}
    with _engine(_vllm(_described(files[0]), **holder)) as (url, posted):
        status, message, _ = _train(tmp_path, files, "vllm", url)
    assert status == 1
    assert f"error: the vllm server at {url} is used by another run\n" in message
    assert "got:  /runs/other, process 5 on host, whose last request was 12 seconds ago\n" in message
    assert "if it has died, the server is free in 49 seconds" in message
    assert posted == []


def test_server_that_does_not_know_the_token_ends_the_run(
    tmp_path: Path, files: tuple[Model, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, KEY[::-1])
    with _engine(_vllm(_described(files[0]))) as (url, _):
        status, message, output = _train(tmp_path, files, "vllm", url)
    assert status == 1
    assert f"error: the server at {url} does not know the token" in message
    assert KEY[::-1] not in output


def test_user_in_a_url_ends_the_run_before_anything_is_asked(tmp_path: Path, files: tuple[Model, str]) -> None:
    status, message, output = _train(tmp_path, files, "vllm", "http://user:hunter2@127.0.0.1:1")
    assert status == 2
    assert "urls: a user or password in a URL" in message
    assert "hunter2" not in output
    assert not any("hunter2" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
