"""Servers as processes: they start or say why not, are started again, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlparse

import pytest

from purerl.backends.serving import instances
from purerl.backends.serving.access import TOKEN, token_of_run
from purerl.backends.serving.process import free_port
from purerl.errors import EngineError
from tests.rollouts.runtimes import wait_until
from tests.serving.toys import WEIGHTS, Toy, ToyModel, completions, engines, requests, sampled, toys


def test_requests_are_answered_and_nothing_is_left(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--children", "2")), are_started=True) as generator:
        generator.submit(requests(50))
        found = completions(generator, 50)
        assert {completion.finish for completion in found.values()} == {"length"}
        assert found["7"].tokens == (1, 2, 3, 4)
        assert generator.collect() == []
        assert len(engines()) == 3
        port = urlparse(generator.servers[0].url).port
    assert engines() == []
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_failed_start_shows_the_error_and_leaves_no_process(tmp_path: Path) -> None:
    text = "(EngineCore pid=12) INFO loads\n(EngineCore pid=12) ValueError: there is no such model\nbye"
    words = r"(?s)toy server at .* did not start\n  got:  exit status 3\n    ValueErr"
    with pytest.raises(EngineError, match=words), toys(tmp_path, Toy(("--fail", text)), number=2):
        pass
    assert engines() == []


def test_start_that_takes_too_long(tmp_path: Path) -> None:
    words = r"not ready after 1 seconds \(server.start_timeout\)"
    with pytest.raises(EngineError, match=words), toys(tmp_path, Toy(("--never-ready",)), start_timeout=1.0):
        pass
    assert engines() == []


def test_start_that_takes_long_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(instances, "_SECONDS_BETWEEN_MESSAGES", 0.5)
    toy = Toy(("--say", "(Worker pid=12) INFO Loading weights: 30 %", "--never-ready"))
    with pytest.raises(EngineError), toys(tmp_path, toy, start_timeout=2.0):
        pass
    words = (
        r"the toy server at \S+ is not ready after \d of at most 2 seconds; the last line of \S+/toy-0.log is 'INFO "
    )
    assert 2 <= len(caplog.messages) <= 4
    assert re.match(words + "Loading weights: 30 %'$", caplog.messages[-1])


def test_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    class Missing(Toy):
        def command(self, host: str, port: int):
            return super().command(host, port)._replace(arguments=("/nowhere/python", "-m", "engine"))

    with pytest.raises(EngineError, match="FileNotFoundError"), toys(tmp_path, Missing()):
        pass


def test_server_that_cannot_be_used_is_ended(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no such route"), toys(tmp_path, Toy(problem="no such route")):
        pass
    assert engines() == []


@pytest.mark.parametrize(("number", "connections"), [(1, 64), (2, 64), (1, 4)])
def test_killed_servers_are_started_again_with_the_current_weights(
    tmp_path: Path, number: int, connections: int
) -> None:
    """Also requests that come while the server starts and loads them, and those that wait for a connection."""
    toy = Toy(starts=[("--limit", "1")] * number, update_seconds=0.3)  # the first ones never finish a request
    with toys(tmp_path, toy, number=number, connections=connections) as generator:
        generator.load_weights(WEIGHTS, version=5)
        generator.submit(requests(40, tokens=100))
        wait_until(lambda: sampled(generator) > 0)
        for pid in engines():
            os.kill(pid, signal.SIGKILL)
        found = completions(generator, 40)
        assert {completion.finish for completion in found.values()} == {"length"}
        assert {version for completion in found.values() for version in completion.version} == {5}
        assert [server.restarts for server in generator.servers] == [1] * number
        assert (tmp_path / "toy-0-1.log").exists(), "the log of the first start is kept"
    assert engines() == []


def test_server_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--seconds", "0.01")), stall_timeout=3.0) as generator:
        generator.submit(requests(10))
        completions(generator, 10)
        [pid] = engines()
        os.kill(pid, signal.SIGSTOP)
        generator.submit(requests(10))
        assert len(completions(generator, 10)) == 10
        assert generator.servers[0].restarts == 1
        assert pid not in engines()


def test_run_stops_after_too_many_restarts(tmp_path: Path) -> None:
    with toys(tmp_path, Toy(("--seconds", "10")), max_restarts=1, stall_timeout=1.0) as generator:
        generator.submit(requests(2))
        with pytest.raises(EngineError, match=r"(?s)has failed\n  got:  no request has finished.*see its log"):
            completions(generator, 2)
    assert engines() == []


@pytest.mark.parametrize("max_restarts", [2, 3])
def test_server_that_fails_while_it_is_started_again(tmp_path: Path, max_restarts: int) -> None:
    """Each start counts. Two restarts fail, and the third one works."""
    toy = Toy(starts=[(), ("--fail", "Error: no memory"), ("--fail", "Error: no port")])
    with toys(tmp_path, toy, max_restarts=max_restarts) as generator:
        generator.load_weights(WEIGHTS, version=3)
        os.kill(engines()[0], signal.SIGKILL)
        generator.submit(requests(4))
        if max_restarts == 2:
            with pytest.raises(EngineError, match=r"(?s)has failed\n.*did not start\n.*exit status 3\n.*no port"):
                completions(generator, 4)
        else:
            assert {c.version for c in completions(generator, 4).values()} == {(3, 3, 3, 3)}
            assert "no memory" in (tmp_path / "toy-0-1.log").read_text()
            assert "no port" in (tmp_path / "toy-0-2.log").read_text()
    assert engines() == []


def test_weights_that_cannot_be_loaded_restart_the_server(tmp_path: Path) -> None:
    with toys(tmp_path) as generator:
        [pid] = engines()
        os.kill(pid, signal.SIGKILL)
        generator.load_weights(WEIGHTS, version=2)
        generator.submit(requests(1))
        assert completions(generator, 1)["0"].version == (2, 2, 2, 2)
        assert generator.servers[0].restarts == 1


def test_server_ends_with_the_run_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.serving.toys import Toy, toys\n"
        f"with toys(Path({str(tmp_path)!r}), Toy(('--children', '1')), are_started=True) as generator:\n"
        "    print(generator.servers[0].url, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    url = urlparse(run.stdout.readline().strip())
    started = [pid for pid in engines() if pid != run.pid]
    assert len(started) == 2
    run.kill()
    run.wait()
    run.stdout.close()
    end = time.monotonic() + 60.0
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < end
        time.sleep(0.05)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", url.port)) != 0


@pytest.fixture
def known_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this process are for it like those that run already, of which it knows the token."""
    monkeypatch.setenv(TOKEN, token_of_run())


@pytest.mark.usefixtures("known_token")
def test_given_servers_are_used_and_not_stopped(tmp_path: Path) -> None:
    with toys(tmp_path) as owner:
        url = owner.servers[0].url
        for _ in range(2):
            with toys(tmp_path, urls=(url,), model=ToyModel(WEIGHTS)) as generator:
                generator.submit(requests(3))
                assert len(completions(generator, 3)) == 3
        with toys(tmp_path, Toy(("--seconds", "1")), urls=(url,), model=ToyModel(WEIGHTS)) as generator:
            for pid in engines():
                os.kill(pid, signal.SIGKILL)
            generator.submit(requests(1))
            with pytest.raises(EngineError, match="purerl has not started it"):
                completions(generator, 1)


@pytest.mark.usefixtures("known_token")
def test_given_servers_get_the_weights_of_the_model(tmp_path: Path) -> None:
    """They may have those of another model, or of an earlier run."""
    toy = Toy()
    with toys(tmp_path) as owner:
        url = owner.servers[0].url
        with toys(tmp_path, toy, urls=(url,), model=ToyModel(WEIGHTS)):
            assert toy.loaded == [[*WEIGHTS.tensors]]
        with pytest.raises(EngineError, match=r"no safetensors files\n  need: weights for the servers in server.urls"):
            toys(tmp_path, urls=(url,)).__enter__()


def test_given_server_that_does_not_answer(tmp_path: Path) -> None:
    urls, words = (f"http://127.0.0.1:{free_port()}",), r"does not answer\n  need: an answer within 0.5 seconds"
    with pytest.raises(EngineError, match=words), toys(tmp_path, urls=urls, start_timeout=0.5):
        pass
