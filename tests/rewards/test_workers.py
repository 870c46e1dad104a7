"""Reward functions in worker processes: a call that hangs, crashes or raises fails alone, and no process remains."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner

from .processes import check_terminates, cpu_seconds, is_alive, wait_until

MODULE = "tests.rewards.functions"
ROOT = Path(__file__).parents[2]


@contextmanager
def open_runner(*names: str, timeout: float = 1.0, num_workers: int = 2) -> Iterator[RewardRunner]:
    with RewardRunner(
        [f"{MODULE}:{name}" for name in names], functions={}, timeout=timeout, num_workers=num_workers
    ) as runner:
        yield runner


def make_inputs(count: int, *bad: int) -> list[RewardInput]:
    """Inputs with completions of length 0, 1, ...; those at the indices `bad` are "bad"."""
    return [RewardInput(str(k), "bad" if k in bad else "x" * k, {"prompt": "p"}) for k in range(count)]


def failure_kinds(results: list[RewardResult]) -> dict[int, str]:
    return {k: result.failure.kind for k, result in enumerate(results) if result.failure}


@pytest.mark.started_workers
def test_results_are_in_the_order_of_inputs_and_computed_in_worker_processes() -> None:
    with open_runner("length", "process_id") as runner:
        results = runner.run(make_inputs(600))
        assert [result.components["length"] for result in results] == list(range(600))
        pids = {result.components["process_id"] for result in results}
        assert os.getpid() not in pids
        later_pids = {result.components["process_id"] for result in runner.run(make_inputs(600))}
        assert len(pids | later_pids) <= 2, "the workers are reused"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("loops_forever", "timed out", "took longer than 1 seconds; most recent call first:\n  File "),
        ("hangs_in_regex", "timed out", "in hangs_in_regex\n"),
        ("blocks_event_loop", "timed out", "in blocks_event_loop\n"),
        ("awaits_sleep", "timed out", "did not finish within 1 seconds"),
        ("exits_process", "died", "the worker process died with exit code 3"),
        ("exits_with_0", "died", "the worker process died with exit code 0"),
        ("aborts", "died", f"the worker process died with exit code {-signal.SIGABRT}"),
        ("kills_itself", "died", f"the worker process died with exit code {-signal.SIGKILL}"),
        ("kills_its_guard", "died", f"the worker process died with exit code {-signal.SIGKILL}"),
        ("raises_keyboard_interrupt", "raised", "KeyboardInterrupt: not by the user"),
        ("raises_keyboard_interrupt_async", "raised", "KeyboardInterrupt: not by the user"),
        ("crashes", "died", f"the worker process died with exit code {-signal.SIGSEGV}"),
        ("raises_async", "raised", "ZeroDivisionError: division by zero"),
    ],
)
def test_failed_call_fails_only_its_own_input(name: str, kind: str, message: str) -> None:
    with open_runner(name) as runner:
        runner.run(make_inputs(1))
        start = time.monotonic()
        results = runner.run(make_inputs(40, 3, 30))
        assert time.monotonic() - start < 20.0
        assert failure_kinds(results) == {3: kind, 30: kind}
        assert message in results[3].failure.traceback
        assert [results[k].reward for k in (2, 4, 29, 31)] == [1.0] * 4
        assert failure_kinds(runner.run(make_inputs(4))) == {}, "dead workers are replaced"


def test_timeout_applies_to_each_call() -> None:
    with open_runner("awaits_sleep", timeout=1.0) as runner:
        assert failure_kinds(runner.run(make_inputs(300))) == {}
    with open_runner("sleeps", timeout=2.0) as runner:
        assert failure_kinds(runner.run(make_inputs(22))) == {}, "eleven calls of 0.2 seconds in each worker"


def _log_calls(log: Path, *completions: str) -> list[list[str]]:
    """The calls of `logs_calls` for `completions`: pairs of the completion and the process id."""
    with open_runner("logs_calls") as runner:
        runner.run([RewardInput(str(k), completion, {"log": str(log)}) for k, completion in enumerate(completions)])
    return [line.split() for line in log.read_text().splitlines()]


def test_input_that_hangs_is_not_retried(tmp_path: Path) -> None:
    calls = _log_calls(tmp_path / "log", *["good"] * 10, "bad", *["good"] * 10)
    assert [completion for completion, _ in calls].count("bad") == 1


def test_slow_inputs_are_distributed_over_the_workers(tmp_path: Path) -> None:
    calls = _log_calls(tmp_path / "log", *["slow"] * 8, *["good"] * 8)
    assert len(calls) == 16
    assert len({pid for completion, pid in calls if completion == "slow"}) == 2


def test_row_fails_if_one_of_several_functions_fails() -> None:
    with open_runner("loops_forever", "length") as runner:
        results = runner.run(make_inputs(5, 2))
        assert failure_kinds(results) == {2: "timed out"}
        assert [result.reward for result in results if not result.failure] == [1.0, 2.0, 4.0, 5.0]


def test_workers_are_terminated_on_exit_even_if_they_hang() -> None:
    with open_runner("process_id", "loops_forever", timeout=60) as runner:
        pids = {int(result.components["process_id"]) for result in runner.run(make_inputs(600))}
        before = {pid: cpu_seconds(pid) for pid in pids}
        with _interrupted_when(lambda: any(cpu_seconds(pid) > before[pid] + 0.1 for pid in pids)):
            runner.run(make_inputs(4, 0, 2))
    for pid in pids:
        check_terminates(pid)


def test_subprocesses_of_a_call_that_hangs_are_terminated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_runner("starts_subprocess") as runner:
        (result,) = runner.run([RewardInput("0", "bad", {"log": str(log)})])
        assert result.failure.kind == "timed out"
        check_terminates(int(log.read_text()))


def test_subprocesses_are_terminated_on_exit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_runner("starts_subprocess", timeout=60) as runner:
        runner.run([RewardInput("0", "good", {"log": str(log)})])
        log.unlink()
        with _interrupted_when(lambda: log.exists() and log.read_text() != ""):
            runner.run([RewardInput("0", "bad", {"log": str(log)})])
    check_terminates(int(log.read_text()))


@contextmanager
def _interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Interrupt this thread, which waits for its workers, as soon as `condition` holds."""

    def interrupt() -> None:
        if wait_until(condition):
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, handler)


SCRIPT = """
from purerl.rewards.adapters import RewardInput
from purerl.rewards.runner import RewardRunner
names = ["{module}:process_id", "{module}:{name}"]
with RewardRunner(names, functions={{}}, timeout=2.0, num_workers=1) as runner:
    print(int(runner.run([RewardInput("0", "", {{}})])[0].components["process_id"]), flush=True)
    runner.run([RewardInput("0", "bad", {{}})])
"""


@pytest.mark.parametrize("name", ["length", "hangs_in_regex"])
def test_workers_terminate_after_the_parent_is_killed(name: str, tmp_path: Path) -> None:
    """The script has no ``if __name__ == "__main__"`` guard. Workers do not import it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(module=MODULE, name=name) + "import time\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        before = cpu_seconds(worker)
        assert name == "length" or wait_until(lambda: cpu_seconds(worker) > before + 0.1)
        parent.kill()
    check_terminates(worker, seconds=15.0)


def test_workers_import_no_large_libraries() -> None:
    code = "import sys, purerl.rewards.workers; print({'torch', 'numpy', 'pyarrow', 'sympy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout == "set()\n"
