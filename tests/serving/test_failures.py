"""Errors that an engine has each time end a run at once; ports in use; memory that is short; logs and their size."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.backends.serving import started
from purerl.backends.serving.failures import cause_in, is_port_in_use, same_error
from purerl.backends.serving.http import Http, RefusedError, UnreachableError
from purerl.backends.serving.log import limit_logs, reason
from purerl.backends.serving.process import free_port
from purerl.backends.serving.weights import WeightFiles, WeightStream
from purerl.backends.transfer.sender import TransferError
from purerl.errors import EngineError
from tests.rollouts.runtimes import wait_until
from tests.serving.toys import WEIGHTS, Toy, completions, engines, requests, sampled, toys

pytestmark = pytest.mark.slow


def kill_engines() -> None:
    for pid in engines():
        os.kill(pid, signal.SIGKILL)


def starts(folder: Path) -> int:
    return len([path for path in folder.glob("toy-0*.log") if "older" not in path.name])


# --- errors that an engine has each time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "failed_starts"),
    [
        ("ImportError: cannot import name 'layers' from 'engine'", 1),
        ("ModuleNotFoundError: No module named 'engine'", 1),
        ("api_server.py: error: unrecognized arguments: --enable-scale-out", 1),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", 1),
        ("ValueError: no kernel for head size {number}", 2),
        ("RuntimeError: {number} blocks of 0x7f{number}, in /tmp/purerl-server-ab12cd3{number}/x", 2),
    ],
)
def test_start_that_fails_with_the_same_error_each_time_is_not_repeated(
    tmp_path: Path, error: str, failed_starts: int
) -> None:
    """Each start of a real engine takes a minute."""
    fails = [("--fail", error.format(number=number)) for number in range(5)]
    with toys(tmp_path, Toy(starts=[(), *fails]), max_restarts=5) as generator:
        kill_engines()
        generator.submit(requests(4))
        with pytest.raises(EngineError) as caught:
            completions(generator, 4)
    assert "has failed, and cannot be started again" in str(caught.value)
    assert error.partition("{")[0] in str(caught.value)
    assert "the run can be resumed from its last checkpoint" in str(caught.value)
    assert starts(tmp_path) == 1 + failed_starts
    assert engines() == []


def test_request_that_ends_the_engine_with_the_same_error_twice_ends_the_run(tmp_path: Path) -> None:
    error = "AssertionError: a prompt of {} tokens with a seed was read in parts"
    failing = [("--fail-at", "8", "--failure", error.format(number)) for number in range(5)]
    with toys(tmp_path, Toy(starts=failing), max_restarts=5) as generator:
        generator.submit(requests(1, tokens=20))
        words = r"has failed twice with the same error\n  got:  AssertionError: a prompt of 1 tokens"
        with pytest.raises(EngineError, match=words):
            completions(generator, 1)
        assert starts(tmp_path) == 2
    assert engines() == []


def test_request_that_ends_the_engine_is_recognized_although_others_work(tmp_path: Path) -> None:
    """Other completions between the failures do not hide it."""
    failing = ("--fail-at", "30", "--failure", "ValueError: an image of no size", "--seconds", "0.01")
    with toys(tmp_path, Toy(failing), max_restarts=5) as generator:
        generator.submit([*requests(1, tokens=100), *(evolve(each, key="x" + each.key) for each in requests(2))])
        with pytest.raises(EngineError, match="twice with the same error\n  got:  ValueError: an image of no size"):
            completions(generator, 3)
        assert starts(tmp_path) == 2


def test_same_error_in_other_requests_is_no_reason_to_end(tmp_path: Path) -> None:
    """A failure that happens once in many hours is not one of a request."""
    failing = [("--fail-at", number, "--failure", "RuntimeError: a link is down") for number in ("8", "14")]
    with toys(tmp_path, Toy(starts=[*failing, ()]), max_restarts=1) as generator:
        for _ in range(2):
            generator.submit(requests(1, tokens=10))
            assert len(completions(generator, 1)) == 1
        assert starts(tmp_path) == 3


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("POST http://127.0.0.1:4567/collective_rpc: 400 no parameter named model.weight"),
        TransferError("process 1 of the server did not load the weights: KeyError: model.weight"),
        UnreachableError("POST http://127.0.0.1:4567/collective_rpc: 500 KeyError: model.weight"),
    ],
    ids=["refused", "reported", "failed"],
)
def test_weights_that_an_engine_refuses_twice_end_the_run(tmp_path: Path, error: Any) -> None:
    setattr(error, "is_report" if isinstance(error, TransferError) else "is_repeatable", True)

    class Refusing(Toy):
        async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
            raise error

    with toys(tmp_path, Refusing(), max_restarts=5, weight_transfer="directory") as generator:
        with pytest.raises(EngineError, match=r"has failed twice with the same error(.|\n)*model.weight"):
            generator.load_weights(WEIGHTS, version=1)
        assert starts(tmp_path) == 2


def test_weights_that_do_not_arrive_are_sent_again(tmp_path: Path) -> None:
    errors: list[Exception] = [TransferError("no report from the server within 5 seconds")] * 2

    class Late(Toy):
        async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
            if errors:
                raise errors.pop()
            await super().update(http, weights, timeout=timeout)

    with toys(tmp_path, Late(), max_restarts=5, weight_transfer="directory") as generator:
        generator.load_weights(WEIGHTS, version=1)
        assert generator.servers[0].restarts == 2


def test_request_on_which_an_engine_fails_each_time_is_an_error_soon(tmp_path: Path) -> None:
    """It was sent six times, within eight seconds."""
    with toys(tmp_path) as generator:
        begin = time.monotonic()
        generator.submit([evolve(requests(1)[0], tokens=[14])])
        completion = completions(generator, 1)["0"]
        assert completion.finish == "error"
        assert re.match(r"sent 3 times: POST .*: 500 .*ZeroDivisionError", str(completion.error))
        assert time.monotonic() - begin < 7.0
        assert generator.servers[0].restarts == 0


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "(EngineCore pid=12) ValueError: a\n(APIServer pid=4) vllm.EngineDeadError: it has died",
            "ValueError: a",
        ),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue", None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer\nKeyboardInterrupt", None),
        ("RuntimeError: Engine core proc died unexpectedly", None),
        ("OSError: [Errno 98] Address already in use", None),
        ("ImportError: no audio", None),
        ("ImportError: no audio\nTypeError: b", "TypeError: b"),
        ("INFO ready", None),
        ("", None),
    ],
)
def test_cause_is_the_first_error_that_explains_itself(tmp_path: Path, log: str, cause: str | None) -> None:
    (tmp_path / "log").write_text(log)
    assert cause_in(tmp_path / "log", ["ImportError: no audio"]) == cause
    assert cause_in(tmp_path / "none") is None


def test_same_error_has_other_numbers() -> None:
    assert same_error("ValueError: 5 of 0x7f3a, port 127.0.0.1:4321", "ValueError: 61 of 0x1, port 127.0.0.1:80")
    assert not same_error("ValueError: 5 rows", "ValueError: 5 columns")
    assert not same_error(None, None)
    assert not same_error(None, "ValueError: 5 rows")


# --- memory --------------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory",
    "MemoryError: ",
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_engine_that_is_out_of_memory_each_time_ends_the_run_with_a_remedy(tmp_path: Path, error: str) -> None:
    with toys(tmp_path, Toy(("--fail-at", "30", "--failure", error)), max_restarts=5) as generator:
        generator.load_weights(WEIGHTS, version=1)
        generator.submit(requests(8, tokens=20))
        with pytest.raises(EngineError) as caught:
            completions(generator, 8)
        assert starts(tmp_path) == 2
    words = r"(?s)has failed twice with the same error\n  got:  .*emory.*do:   lower generator.max_num_seqs, "
    assert re.search(words, str(caught.value))
    assert engines() == []


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_engine_that_is_out_of_memory_once_is_started_again(tmp_path: Path, error: str) -> None:
    with toys(tmp_path, Toy(starts=[("--fail-at", "30", "--failure", error)]), max_restarts=1) as generator:
        generator.load_weights(WEIGHTS, version=1)
        generator.submit(requests(8, tokens=20))
        found = completions(generator, 8)
        assert {version for completion in found.values() for version in completion.version} == {1}
        assert generator.servers[0].restarts == 1


def test_engine_that_the_kernel_has_killed_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with toys(tmp_path, Toy(("--seconds", "0.01")), max_restarts=2) as generator:
        for _ in range(2):
            before = sampled(generator)
            generator.submit(requests(2, tokens=50))
            wait_until(lambda before=before: sampled(generator) > before)
            kill_engines()
            assert len(completions(generator, 2)) == 2
    assert [text for text in caplog.messages if "ended by signal 9, as the kernel does if memory is short" in text]


# --- ports ---------------------------------------------------------------------------------------------------------


def test_port_that_another_process_has_taken_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between its choice and the start of the server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1]]
        monkeypatch.setattr(started, "free_port", lambda: ports.pop() if ports else free_port())
        with toys(tmp_path) as generator:
            generator.submit(requests(2))
            assert len(completions(generator, 2)) == 2
    assert [text for text in caplog.messages if "another process has taken its port; see " in text]


def test_each_port_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(started, "free_port", lambda: other.getsockname()[1])
        words = "did not start\n  got:  3 ports that other processes have taken\n"
        with pytest.raises(EngineError, match=words):
            toys(tmp_path, start_timeout=120.0).__enter__()
    assert engines() == []


def test_port_on_which_a_server_of_others_answers_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the token of this run, or answers everybody."""
    with toys(tmp_path / "others") as others:
        monkeypatch.setattr("purerl.backends.serving.started.token_of_run", lambda: "another token of the run")
        ports = [int(others.servers[0].url.rpartition(":")[2])]
        monkeypatch.setattr(started, "free_port", lambda: ports.pop() if ports else free_port())
        with toys(tmp_path) as generator:
            generator.submit(requests(2))
            assert len(completions(generator, 2)) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OSError: [Errno 98] Address already in use", True),
        ("ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use", True),
        ("ValueError: Port 3000 is already in use", True),
        ("The port 8000 is used", True),
        ("port 8000 is unused; ValueError: x", False),
        ("ValueError: 98", False),
    ],
)
def test_messages_of_engines_about_ports(text: str, expected: bool) -> None:
    assert is_port_in_use(text) is expected


# --- logs ----------------------------------------------------------------------------------------------------------


def test_log_that_is_written_keeps_its_newest_part(tmp_path: Path) -> None:
    log = tmp_path / "toy-0.log"
    size = 10_000
    with log.open("a") as program:  # it appends, as the program of a server does
        for number in range(2000):
            program.write(f"line {number}\n")
            program.flush()
            if number % 20 == 0:
                limit_logs(log, log, size)
    texts = (tmp_path / "toy-0.older.log").read_text() + log.read_text()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= size * 1.1
    assert texts.endswith("line 1998\nline 1999\n")
    numbers = [int(line.split()[1]) for line in texts.splitlines()]
    assert numbers == [*range(numbers[0], 2000)]
    assert "line 1999" in reason(log)


def test_oldest_logs_of_a_server_are_removed_and_not_those_of_others(tmp_path: Path) -> None:
    names = ["toy-1.log", "toy-1.older.log", "toy-1-1.log", "toy-1-2.log", "toy-1-3.log"]
    others = ["toy-10.log", "toy-0.log", "toy-1-notes.log", "toy-1-1.txt"]
    for age, name in enumerate([*names, *others]):
        (tmp_path / name).write_text(1000 * "x")
        os.utime(tmp_path / name, (age, age))
    limit_logs(tmp_path / "toy-1.log", tmp_path / "toy-1-3.log", 3000)
    assert {path.name for path in tmp_path.iterdir()} == {*others, *names[2:]}
    limit_logs(tmp_path / "toy-1.log", tmp_path / "toy-1-3.log", 100)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*others, "toy-1-3.log", "toy-1-3.older.log"}


def test_logs_of_a_run_are_limited_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started, "MAX_LOGS", 4000)
    monkeypatch.setattr(started, "_LOG_POLL", 0.05)
    with toys(tmp_path, Toy(("--say", 3000 * "x"))) as generator:
        log = tmp_path / "toy-0.log"
        wait_until(lambda: log.stat().st_size == 0)
        assert (tmp_path / "toy-0.older.log").read_text().endswith(3000 * "x")
        generator.submit(requests(1))
        assert len(completions(generator, 1)) == 1


def test_errors_before_the_newest_part_of_a_log_are_found(tmp_path: Path) -> None:
    log = tmp_path / "toy-0.log"
    log.write_text("ValueError: the cause\n" + 100 * "x\n")
    limit_logs(log, log, 100)
    log.write_text("bye\n")
    assert reason(log).split("\n")[0] == "    ValueError: the cause"
    assert cause_in(log) == "ValueError: the cause"
