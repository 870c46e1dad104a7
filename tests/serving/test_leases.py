"""One run at a time changes the weights of a server that runs already: the lease of the server, and the run's part."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from purerl.backends.serving import lease as client
from purerl.backends.serving.access import TOKEN, token_of_run
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.http import Http, LockedError
from purerl.backends.serving.lease import Owner, ServerLease, new_owner
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.shared import check_given
from purerl.backends.transfer.engine.purerl_lease import HEADER, PATH, Holder, Lease
from purerl.backends.transfer.engine.purerl_server import Guard
from purerl.errors import EngineError
from tests.serving.toys import WEIGHTS, Toy, ToyModel, completions, engines, requests, toys

SECRET = "0123456789abcdef"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(tmp_path: Path, clock: Clock) -> Lease:
    (tmp_path / "lease").touch()
    return Lease(str(tmp_path / "lease"), clock)


def take(lease: Lease, id: str, run: str | None = None) -> Holder | None:
    return lease.take(id, run, f"run {id}")


# --- the server ----------------------------------------------------------------------------------------------------


def test_one_run_has_the_lease_until_a_minute_after_its_last_request(lease: Lease, clock: Clock) -> None:
    assert lease.holder() is take(lease, "a") is None
    clock.now += 59.0
    assert lease.admits("a", "/load")
    clock.now += 59.0
    other = take(lease, "b")
    assert other is not None
    assert lease.describe(other) == {"run": None, "name": "run a", "idle": 59.0, "expires_in": 1.0}
    clock.now += 1.0
    assert lease.holder() is None
    assert take(lease, "b") is None
    assert not lease.admits("a", "/generate"), "the weights are those of another run"
    assert lease.admits("b", "/generate")


def test_lease_that_was_given_back_is_free_at_once(lease: Lease) -> None:
    take(lease, "a")
    lease.give_back("b")
    lease.give_back(None)
    assert take(lease, "b") is not None
    lease.give_back("a")
    assert take(lease, "b") is None


def test_run_that_starts_again_takes_its_lease_over(lease: Lease) -> None:
    """Its directory is locked, so the process that had the lease has ended."""
    take(lease, "a", "directory")
    assert take(lease, "b", "another directory") is not None
    assert take(lease, "c", None) is not None
    assert take(lease, "d", "directory") is None
    assert [lease.admits(each, "/generate") for each in "ad"] == [False, True]


@pytest.mark.parametrize("path", ["/health", "/v1/chat/completions", "/generate", "/v1/models/", "/tokenize"])
def test_clients_without_a_lease_may_read_and_sample(lease: Lease, path: str) -> None:
    take(lease, "a")
    assert lease.admits(None, path)


@pytest.mark.parametrize(
    "path",
    ["/collective_rpc", "/flush_cache", "/update_weights_from_disk", "/v1/load_lora_adapter", "/sleep", "//x", "/new"],
)
def test_clients_without_a_lease_change_nothing_while_there_is_one(lease: Lease, clock: Clock, path: str) -> None:
    assert lease.admits(None, path), "nobody has the server"
    take(lease, "a")
    assert not lease.admits(None, path)
    assert lease.admits("a", path)
    clock.now += 60.0
    assert lease.admits(None, path)
    assert not lease.admits("a", "/generate"), "others have changed the server"


def test_run_continues_after_its_lease_has_ended_if_nobody_has_changed_the_server(lease: Lease, clock: Clock) -> None:
    take(lease, "a")
    clock.now += 1000.0
    assert lease.admits(None, "/health")
    assert lease.admits("a", "/load")
    assert take(lease, "b") is not None


def test_processes_of_a_server_share_the_lease(lease: Lease, tmp_path: Path, clock: Clock) -> None:
    take(lease, "a")
    assert not Lease(str(tmp_path / "lease"), clock).admits("b", "/generate")


def _guarded(lease: Lease, method: str, path: str, body: Any = None, id: str | None = None) -> list[dict[str, Any]]:
    """The answer of `Guard`; the application answers "reached"."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"body": json.dumps(body).encode()}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    headers = [(b"authorization", f"Bearer {SECRET}".encode())]
    headers += [] if id is None else [(HEADER.lower().encode(), id.encode())]
    kind = "websocket" if method == "websocket" else "http"
    scope = {"type": kind, "method": method, "path": path, "headers": headers}
    asyncio.run(Guard(app, SECRET, lease)(scope, receive, send))
    return sent


def _answered(sent: list[dict[str, Any]]) -> tuple[int, Any]:
    start, body = sent
    return start["status"], json.loads(body["body"])


def test_program_of_a_server_has_the_lease(lease: Lease) -> None:
    first, second = ({"id": each, "run": None, "name": f"run {each}"} for each in "ab")
    held = {"run": None, "name": "run a", "idle": 0.0, "expires_in": 60.0}
    assert _answered(_guarded(lease, "GET", PATH)) == (200, {})
    assert _answered(_guarded(lease, "POST", PATH, first)) == (200, {"seconds": 60.0})
    assert _answered(_guarded(lease, "POST", PATH, first, id="a")) == (200, {"seconds": 60.0})
    assert _answered(_guarded(lease, "POST", PATH, second)) == (423, held)
    assert _answered(_guarded(lease, "POST", PATH, second, id="b")) == (423, held)
    assert _answered(_guarded(lease, "GET", PATH)) == (200, held)
    assert _answered(_guarded(lease, "POST", "/collective_rpc")) == (423, held)
    assert _guarded(lease, "websocket", "/v1/realtime") == [{"type": "websocket.close", "code": 1008}]
    assert _guarded(lease, "POST", "/collective_rpc", id="a") == [{"type": "reached"}]
    assert _answered(_guarded(lease, "DELETE", PATH, id="a")) == (200, {})
    assert _answered(_guarded(lease, "POST", PATH, second)) == (200, {"seconds": 60.0})


@pytest.mark.parametrize("other", [None, "b"])
def test_answer_of_a_server_that_another_run_has_taken_meanwhile_is_not_sent(
    lease: Lease, clock: Clock, other: str | None
) -> None:
    """Its last tokens may be from the weights of that run."""
    take(lease, "a")
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        clock.now += 61.0
        if other is not None:
            take(lease, other)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"tokens"})

    headers = [(b"authorization", f"Bearer {SECRET}".encode()), (HEADER.encode(), b"a")]
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": headers}
    asyncio.run(Guard(app, SECRET, lease)(scope, None, send))
    assert [sent[0]["status"], len(sent)] == [200 if other is None else 423, 2]
    assert (b"tokens" in sent[1]["body"]) is (other is None)


@pytest.mark.parametrize("body", [None, [], {}, {"id": "a"}, {"id": "a", "run": None}, "x" * 2**17])
def test_what_is_no_request_for_the_lease_is_refused(lease: Lease, body: Any) -> None:
    status, answer = _answered(_guarded(lease, "POST", PATH, body))
    assert status == 400
    assert "not the request of a run" in answer["error"]
    assert lease.holder() is None


# --- the run -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _known_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this process are for it like those that run already, of which it knows the token."""
    monkeypatch.setenv(TOKEN, token_of_run())


@contextmanager
def run_with(owner: ServedGenerator, folder: Path, run: str, **settings: Any) -> Iterator[ServedGenerator]:
    """A run in the directory `run` that uses the server of `owner`."""
    logs = {"logs": str(folder / run / "servers")}
    with toys(folder, urls=(owner.servers[0].url,), model=ToyModel(WEIGHTS), **logs, **settings) as generator:
        yield generator


def test_server_that_another_run_uses_is_refused_at_once_with_its_name(tmp_path: Path) -> None:
    with toys(tmp_path) as owner:
        with run_with(owner, tmp_path, "first") as generator:
            begin = time.monotonic()
            with pytest.raises(EngineError) as caught, run_with(owner, tmp_path, "second"):
                pass
            assert time.monotonic() - begin < 30.0
            generator.submit(requests(3))
            assert len(completions(generator, 3)) == 3
        text = str(caught.value)
        assert re.match(r"the toy server at http://127.0.0.1:\d+ is used by another run\n  got:  ", text)
        assert f"{tmp_path / 'first'}, process {os.getpid()} on " in text
        assert re.search(r"if it has died, the server is free in (5\d|60) seconds$", text)
        with run_with(owner, tmp_path, "second"):
            pass


def test_evaluation_is_refused_while_a_run_uses_the_server_and_the_other_way_round(tmp_path: Path) -> None:
    with toys(tmp_path) as owner:
        urls = (owner.servers[0].url,)
        with run_with(owner, tmp_path, "run"), pytest.raises(EngineError, match=f"{tmp_path / 'run'}, process"):
            toys(tmp_path, urls=urls, model=ToyModel(WEIGHTS)).__enter__()
        with (
            toys(tmp_path, urls=urls, model=ToyModel(WEIGHTS)),
            pytest.raises(EngineError, match=f"got:  an evaluation or a program, process {os.getpid()} on"),
            run_with(owner, tmp_path, "run"),
        ):
            pass


def _taken(generator: ServedGenerator, owner: Owner) -> None:
    """Take the lease of the server for another run, which then dies."""

    async def take_and_die() -> None:
        http = Http(generator.servers[0].url, token=token_of_run(), connections=1)
        lease = ServerLease(http, "the server", owner, must_have=True)
        await lease.take()
        assert lease._renewal is not None
        lease._renewal.cancel()
        await http.close()

    asyncio.run(take_and_die())


def test_server_whose_run_has_died_is_free_after_the_lease(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--lease-seconds", "2"))) as owner:
        _taken(owner, Owner("dead", "directory", "a dead run"))
        with pytest.raises(EngineError, match=r"a dead run, whose last(.|\n)* free in [12] seconds"):
            run_with(owner, tmp_path, "second").__enter__()
        time.sleep(2.0)
        with run_with(owner, tmp_path, "second"):
            pass


def test_run_that_was_killed_takes_its_server_over_at_once(tmp_path: Path) -> None:
    """Not a run in a directory with the same name elsewhere."""
    with toys(tmp_path) as owner:
        _taken(owner, new_owner(tmp_path / "run"))
        with pytest.raises(EngineError, match="is used by another run"):
            run_with(owner, tmp_path, "other/run").__enter__()
        with run_with(owner, tmp_path, "run") as generator:
            generator.submit(requests(1))
            assert len(completions(generator, 1)) == 1


def test_run_keeps_its_lease_while_it_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BETWEEN", 0.2)
    with toys(tmp_path, Toy(("--lease-seconds", "2"))) as owner, run_with(owner, tmp_path, "first"):
        time.sleep(3.0)
        with pytest.raises(EngineError, match="is used by another run"):
            run_with(owner, tmp_path, "second").__enter__()


def test_run_that_has_lost_its_lease_ends(tmp_path: Path) -> None:
    """It was stopped for longer than the lease. It neither samples from the weights of others, nor sends its own."""
    with toys(tmp_path, Toy(("--lease-seconds", "0.5"))) as owner, run_with(owner, tmp_path, "first") as generator:
        time.sleep(0.6)
        _taken(owner, Owner("other", None, "the other run"))
        generator.submit(requests(1))
        with pytest.raises(EngineError, match=r"was taken from this run\n  got:  'the other run' has it now\n"):
            completions(generator, 1)
        with pytest.raises(EngineError, match="was taken from this run"):
            generator.load_weights(WEIGHTS, version=2)


def test_run_ends_if_its_server_was_started_again_by_others(tmp_path: Path) -> None:
    """The server has its own weights then, and no lease."""
    with toys(tmp_path) as owner, run_with(owner, tmp_path, "first") as generator:
        http = Http(generator.servers[0].url, token=token_of_run(), connections=1)
        http.lease = generator.servers[0]._http.lease
        asyncio.run(http.delete(PATH, timeout=30.0))
        generator.submit(requests(1))
        with pytest.raises(EngineError, match=r"was taken from this run\n  got:  it was started again, or others have"):
            completions(generator, 1)


def test_renewal_takes_no_lease_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_BETWEEN", 0.05)
    with toys(tmp_path) as owner, run_with(owner, tmp_path, "first") as generator:
        http = Http(generator.servers[0].url, token=token_of_run(), connections=1)
        http.lease = generator.servers[0]._http.lease
        asyncio.run(http.delete(PATH, timeout=30.0))
        time.sleep(0.5)
        with run_with(owner, tmp_path, "second"):
            pass


def test_server_without_leases_gets_no_weights_but_may_read_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with toys(tmp_path, Toy(("--no-leases",))) as owner:
        words = r"cannot be used\n  got:  no leases: another run could send it weights(.|\n)*purerl serve"
        with pytest.raises(EngineError, match=words):
            run_with(owner, tmp_path, "run").__enter__()
        caplog.clear()
        with run_with(owner, tmp_path, "run", weight_transfer="directory") as generator:
            assert [message for message in caplog.messages if "has no leases: if another run uses it" in message]
            generator.submit(requests(1))
            assert len(completions(generator, 1)) == 1


def test_server_that_cannot_be_used_is_given_back(tmp_path: Path) -> None:
    with toys(tmp_path) as owner:
        urls = (owner.servers[0].url,)
        with pytest.raises(EngineError, match="cannot be used\n  got:  another model"):
            toys(tmp_path, Toy(problem="another model"), urls=urls, model=ToyModel(WEIGHTS)).__enter__()
        with run_with(owner, tmp_path, "run"):
            pass


def test_one_server_of_several_that_is_in_use_leaves_the_others_free(tmp_path: Path) -> None:
    with toys(tmp_path, number=2) as owner:
        _taken(owner, Owner("dead", None, "a dead run"))
        urls = tuple(server.url for server in owner.servers)
        with pytest.raises(EngineError, match="a dead run"):
            toys(tmp_path, urls=urls, model=ToyModel(WEIGHTS)).__enter__()
        with toys(tmp_path, urls=urls[1:], model=ToyModel(WEIGHTS)):
            pass


def test_servers_are_looked_at_before_models_are_loaded(tmp_path: Path) -> None:
    with toys(tmp_path) as owner:
        settings = ServerSettings(urls=(owner.servers[0].url,), logs=str(tmp_path / "run/servers"))
        check_given(Toy(), settings)
        with pytest.raises(EngineError, match="cannot be used\n  got:  another model"):
            check_given(Toy(problem="another model"), settings)
        _taken(owner, new_owner(tmp_path / "run"))
        check_given(Toy(), settings)  # the same run, which was killed
        with pytest.raises(EngineError, match=f"is used by another run\n  got:  {tmp_path / 'run'}, process"):
            check_given(Toy(), ServerSettings(urls=settings.urls, logs=str(tmp_path / "second/servers")))
        for pid in engines():
            os.kill(pid, signal.SIGKILL)
        check_given(Toy(), settings)  # it may be about to start


def test_lost_lease_can_be_sent_to_other_ranks() -> None:
    from purerl.system.messages import decode, encode

    error = decode(encode(LockedError("http://host:1", {"name": "a run", "idle": 1.0, "expires_in": 2.0})))
    assert isinstance(error, EngineError)
    assert "taken from this run\n  got:  'a run' has it now" in str(error)
