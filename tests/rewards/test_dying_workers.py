"""Worker processes that are killed or crash all the time, and the processes that reward functions have started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from purerl.errors import RewardError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner

from .processes import check_terminates, child_guards, is_alive, wait_until
from .test_workers import MODULE, ROOT, failure_kinds, make_inputs, open_runner


@pytest.mark.parametrize("name", ["crashes", "aborts", "exits_with_0", "kills_its_guard"])
def test_function_that_ends_its_process_on_every_row_fails_every_row(name: str) -> None:
    with open_runner(name, timeout=30.0) as runner:
        assert failure_kinds(runner.run(make_inputs(6, *range(6)))) == dict.fromkeys(range(6), "died")
        assert failure_kinds(runner.run(make_inputs(4))) == {}


def _kill_workers_twice(folder: Path, killed: set[int]) -> None:
    """Kill both workers at once when each of them waits in a call; do so again with those that replace them."""

    def waiting() -> set[int]:
        return {int(path.suffix[1:]) for path in folder.iterdir()} - killed

    for _ in range(2):
        if wait_until(lambda: len(waiting()) == 2):
            pids = waiting()
            killed |= pids
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    (folder / "go").touch()


def test_all_workers_killed_at_once_fail_only_the_rows_that_they_were_scoring(tmp_path: Path) -> None:
    killed: set[int] = set()
    inputs = [RewardInput(str(k), str(k), {"folder": str(tmp_path)}) for k in range(20)]
    killer = threading.Thread(target=_kill_workers_twice, args=(tmp_path, killed))
    with open_runner("waits_for_file", timeout=60.0) as runner:
        killer.start()
        results = runner.run(inputs)
        killer.join()
        assert len(killed) == 4
        assert len(failure_kinds(results)) == 4
        assert set(failure_kinds(results).values()) == {"died"}
        assert failure_kinds(runner.run(inputs)) == {}


def test_all_workers_killed_at_once_while_only_one_is_scoring(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "go").touch()

    def kill_all() -> None:
        assert wait_until(lambda: any(second.iterdir()))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        (second / "go").touch()

    with open_runner("waits_for_file", timeout=60.0) as runner:
        inputs = [RewardInput(str(k), str(k), {"folder": str(first)}) for k in range(20)]
        assert wait_until(lambda: bool(runner.run(inputs)) and len({path.suffix for path in first.glob("*.*")}) == 2)
        pids = {int(path.suffix[1:]) for path in first.glob("*.*")}
        killer = threading.Thread(target=kill_all)
        killer.start()
        results = runner.run([RewardInput("0", "0", {"folder": str(second)})])
        killer.join()
        assert failure_kinds(results) == {0: "died"}
        assert failure_kinds(runner.run(inputs)) == {}


def test_workers_killed_between_two_calls_are_replaced() -> None:
    with open_runner("process_id") as runner:
        assert wait_until(lambda: len(child_guards()) == 2)
        pids = {int(result.components["process_id"]) for result in runner.run(make_inputs(600))}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        results = runner.run(make_inputs(600))
        assert failure_kinds(results) == {}
        assert not pids & {int(result.components["process_id"]) for result in results}


def test_worker_that_cannot_start_ends_the_run_after_some_attempts(tmp_path: Path) -> None:
    """The module can be imported in this process, but ends every other process."""
    module = tmp_path / "ends_workers.py"
    module.write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    os._exit(7)\n\ndef one(c, e):\n    return 1.0\n"
    )
    with (
        RewardRunner([f"{module}:one"], functions={}, timeout=1.0, num_workers=1) as runner,
        pytest.raises(RewardError, match="3 starts in a row failed; the last one ended with exit code 7"),
    ):
        runner.run(make_inputs(3))
    sys.path.remove(str(tmp_path))


def test_inputs_that_were_given_up_are_forgotten() -> None:
    async def give_up(runner: RewardRunner) -> None:
        tasks = [asyncio.create_task(runner.score(make_inputs(4, *range(4)))) for _ in range(50)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    with open_runner("loops_forever", timeout=0.5) as runner:
        runner.run(make_inputs(1))
        start = time.monotonic()
        asyncio.run(give_up(runner))
        assert failure_kinds(runner.run(make_inputs(10, 3))) == {3: "timed out"}
        assert time.monotonic() - start < 40.0, "all of them take 50 seconds at least"


# --- processes that reward functions have started ----------------------------------------------------------------


def test_daemon_in_another_session_ends_with_its_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_runner("starts_daemon", timeout=60.0) as runner:
        (result,) = runner.run([RewardInput("0", "dies", {"log": str(log)})])
        assert result.failure.kind == "died"
        check_terminates(int(log.read_text()))


def test_daemon_of_a_healthy_worker_ends_with_the_runner(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_runner("starts_daemon", timeout=60.0) as runner:
        assert runner.run([RewardInput("0", "good", {"log": str(log)})])[0].reward == 1.0
        assert wait_until(lambda: log.exists() and log.read_text() != "")
        assert is_alive(int(log.read_text()))
    assert not is_alive(int(log.read_text())), "the runner waits for the end of all processes"


SCRIPT = """
import os, time
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner
with RewardRunner(["{module}:starts_daemon"], functions={{}}, timeout=60.0, num_workers=1) as runner:
    if {forks} and os.fork() == 0:  # it inherits every connection, and keeps them open
        time.sleep(60)
        os._exit(0)
    runner.run([RewardInput("0", "{completion}", {{"log": "{log}"}})])
    time.sleep(60)
"""


@pytest.mark.parametrize(("completion", "forks"), [("bad", False), ("good", False), ("bad", True)])
def test_daemon_ends_when_the_run_is_killed(completion: str, forks: bool, tmp_path: Path) -> None:
    log, script = tmp_path / "log", tmp_path / "script.py"
    script.write_text(SCRIPT.format(module=MODULE, completion=completion, log=log, forks=forks))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))}
    with subprocess.Popen([sys.executable, str(script)], env=environment, start_new_session=True) as run:
        assert wait_until(lambda: log.exists() and log.read_text() != "")
        daemon = int(log.read_text())
        assert is_alive(daemon)
        run.kill()
        run.wait()
        check_terminates(daemon)
        if forks:
            os.killpg(run.pid, signal.SIGKILL)


def test_no_file_is_left_when_the_run_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_runner("length") as runner:
        assert failure_kinds(runner.run(make_inputs(3))) == {}
        assert list(tmp_path.iterdir()) == [], "nothing that would remain if this process were killed now"


# --- memory ------------------------------------------------------------------------------------------------------


def test_memory_limit_fails_the_row_that_exceeds_it_and_names_the_limit() -> None:
    with RewardRunner([f"{MODULE}:uses_memory"], functions={}, timeout=30.0, num_workers=1, max_memory=256) as runner:
        results = runner.run(make_inputs(6, 2))
    assert failure_kinds(results) == {2: "ran out of memory"}
    assert results[2].failure.traceback.endswith("MemoryError\nthe process may use 256 MiB of memory\n")
    with open_runner("uses_memory", timeout=30.0) as runner:
        assert failure_kinds(runner.run(make_inputs(3, 2))) == {}, "without a limit"


def test_worker_that_dies_with_a_memory_limit_names_the_limit() -> None:
    with RewardRunner([f"{MODULE}:aborts"], functions={}, timeout=30.0, num_workers=1, max_memory=256) as runner:
        (result,) = runner.run(make_inputs(1, 0))
    assert result.failure.traceback.endswith("exit code -6; it could use 256 MiB of memory\n")


# --- signals -----------------------------------------------------------------------------------------------------


def _call_here(function: Callable[..., float]) -> RewardResult:
    """The result of a function that is called in this process."""
    (result,) = RewardRunner(["m:f"], functions={"m:f": function}, timeout=5.0, num_workers=None).run(make_inputs(1))
    return result


@pytest.fixture
def _default_handlers() -> Iterator[None]:
    """Python's handler of SIGINT, and one of SIGALRM as the command line has after an interruption that was ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_default_handlers")
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exception_of_any_class_in_this_process_is_a_failure(exception: type[BaseException]) -> None:
    def raises(completion: str, example: object) -> float:
        raise exception("not by the user")

    result = _call_here(raises)
    assert result.failure.kind == "raised"
    assert result.failure.traceback.endswith(f"{exception.__name__}: not by the user\n")


@pytest.mark.usefixtures("_default_handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_interruption_by_a_signal_stops_the_run(number: signal.Signals) -> None:
    def interrupted(completion: str, example: object) -> float:
        signal.raise_signal(number)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        _call_here(interrupted)
    assert signal.getsignal(number) is signal.default_int_handler


@pytest.mark.usefixtures("_default_handlers")
def test_alarm_of_a_function_is_its_own() -> None:
    """Some functions limit their time with SIGALRM, and with an exception that is not an Exception."""

    def late(completion: str, example: object) -> float:
        signal.signal(signal.SIGALRM, lambda number, frame: sys.exit("late"))
        signal.raise_signal(signal.SIGALRM)
        return 1.0

    assert _call_here(late).failure.traceback.endswith("SystemExit: late\n")
