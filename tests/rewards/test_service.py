"""Several calls of `RewardRunner.score` at the same time: each gets its results as soon as they are known."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from purerl.errors import RewardError
from purerl.rewards.adapters import RewardInput
from purerl.rewards.results import RewardResult
from purerl.rewards.runner import RewardRunner

from .processes import wait_until
from .test_workers import failure_kinds, make_inputs, open_runner

SECONDS = 60.0  # far more than any of the calls takes that must not wait for others


def _inputs(folder: Path, *completions: str) -> list[RewardInput]:
    return [RewardInput(text, text, {"folder": str(folder), "log": str(folder / "log")}) for text in completions]


async def _all(runner: RewardRunner, *calls: list[RewardInput]) -> list[list[RewardResult]]:
    """The results of calls that are made in the same turn of the event loop."""
    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*map(runner.score, calls))


# --- calls do not wait for each other ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["loops_forever", "hangs_in_regex"])
def test_function_that_hangs_in_one_call_does_not_delay_another_one(name: str) -> None:
    async def score(runner: RewardRunner) -> None:
        hanging = asyncio.create_task(runner.score(make_inputs(8, 3)))
        in_the_same_turn, *_ = await _all(runner, make_inputs(30))
        assert failure_kinds(in_the_same_turn) == {}
        [later] = await _all(runner, make_inputs(5))
        assert failure_kinds(later) == {}
        assert not hanging.done()
        hanging.cancel()

    with open_runner(name, timeout=2 * SECONDS) as runner:
        asyncio.run(score(runner))


def test_awaitable_of_one_call_does_not_delay_another_call_on_the_same_worker(tmp_path: Path) -> None:
    async def score(runner: RewardRunner) -> None:
        waiting = asyncio.create_task(runner.score(_inputs(tmp_path, "first", "free")))
        for _ in range(3):
            [results] = await _all(runner, _inputs(tmp_path, "free", "free"))
            assert failure_kinds(results) == {}
        assert not waiting.done()
        (tmp_path / "first").touch()
        async with asyncio.timeout(SECONDS):
            assert failure_kinds(await waiting) == {}

    with open_runner("awaits_file", "length", timeout=2 * SECONDS, num_workers=1) as runner:
        asyncio.run(score(runner))


def test_calls_are_served_in_their_order(tmp_path: Path) -> None:
    async def score(runner: RewardRunner) -> list[str]:
        tasks = []
        for name in ("slow", *"abc"):
            tasks.append(asyncio.create_task(runner.score(_inputs(tmp_path, *[name] * 5))))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]

    with open_runner("logs_calls", timeout=SECONDS, num_workers=1) as runner:
        order = asyncio.run(score(runner))
    assert list(dict.fromkeys(order)) == ["slow", *"abc"]


def test_calls_from_several_threads_and_without_an_event_loop() -> None:
    with open_runner("length", timeout=SECONDS) as runner:
        results: list[list[RewardResult]] = []
        threads = [threading.Thread(target=lambda: results.append(runner.run(make_inputs(9)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(_all(runner, make_inputs(3), make_inputs(0)))
        for thread in threads:
            thread.join()
    assert [[result.reward for result in each] for each in results] == [list(range(9))] * 4


def test_run_inside_of_a_running_event_loop() -> None:
    async def notebook(runner: RewardRunner) -> list[list[RewardResult]]:
        return [runner.run(make_inputs(4)), await runner.score(make_inputs(4))]

    with open_runner("length", timeout=SECONDS) as runner:
        first, second = asyncio.run(notebook(runner))
    assert first == second == [RewardResult({"length": k}, {"length": k}) for k in range(4)]


# --- functions that take several inputs --------------------------------------------------------------------------


def test_calls_of_the_same_turn_are_combined_and_not_divided() -> None:
    with open_runner("batch_size", timeout=SECONDS, num_workers=1) as runner:
        runner.run(make_inputs(1))
        results = asyncio.run(_all(runner, *[make_inputs(3)] * 4))
    assert [[result.reward for result in each] for each in results] == [[12.0] * 3] * 4
    with open_runner("batch_size", timeout=SECONDS, num_workers=2) as runner:
        results = asyncio.run(_all(runner, *[make_inputs(3)] * 5))
    assert {(result.reward or 0.5) % 3 for each in results for result in each} == {0.0}


@pytest.mark.parametrize(
    ("name", "kind"), [("raises_on_batch", "raised"), ("bills_on_batch", "raised"), ("exits_on_batch", "died")]
)
def test_failure_of_a_combined_call_concerns_only_the_inputs_of_one_of_them(name: str, kind: str) -> None:
    with open_runner(name, timeout=SECONDS, num_workers=1) as runner:
        runner.run(make_inputs(1))
        results = asyncio.run(_all(runner, make_inputs(3), make_inputs(3, 1), make_inputs(2)))
    assert [failure_kinds(each) for each in results] == [{}, dict.fromkeys(range(3), kind), {}]


def test_totals_of_a_combined_call_that_fails_and_is_repeated_count() -> None:
    with open_runner("bills_on_batch", timeout=SECONDS, num_workers=1) as runner:
        runner.run(make_inputs(1))
        results = asyncio.run(_all(runner, make_inputs(3), make_inputs(3, 1)))
    totals = [result.totals.get("bills_on_batch/tokens", 0.0) for each in results for result in each]
    assert totals == [5.0, 0.0, 0.0, 5.0, 0.0, 0.0]


def test_random_reward_does_not_depend_on_how_inputs_are_combined() -> None:
    inputs = [RewardInput(str(k), "", {}, seed) for k, seed in enumerate((5, 3, 5, 2**62 + 4, 0, 1))]
    with open_runner("random_python", timeout=SECONDS) as runner:
        expected = runner.run(inputs)
        assert asyncio.run(_all(runner, inputs[::-1], inputs[:3], inputs[3:])) == [
            expected[::-1],
            expected[:3],
            expected[3:],
        ]


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("crashes", "died"),
        ("kills_its_guard", "died"),
        ("loops_forever", "timed out"),
        ("exits_async", "died"),
        ("blocks_event_loop", "timed out"),
        ("raises_async", "raised"),
    ],
)
def test_worker_that_ends_fails_one_input_of_many_calls(name: str, kind: str) -> None:
    with open_runner(name, timeout=2.0 if kind == "timed out" else SECONDS) as runner:
        results = asyncio.run(_all(runner, *[make_inputs(4)] * 4, make_inputs(4, 2), *[make_inputs(4)] * 4))
        assert list(map(failure_kinds, results)) == [{}] * 4 + [{2: kind}] + [{}] * 4


def test_killed_worker_with_awaitables_fails_no_more_than_one_input(tmp_path: Path) -> None:
    async def score(runner: RewardRunner) -> list[list[RewardResult]]:
        [[result]] = await _all(runner, _inputs(tmp_path, "free"))
        calls = asyncio.create_task(_all(runner, *[_inputs(tmp_path, "go", "go")] * 4))
        assert await asyncio.to_thread(wait_until, (tmp_path / "go.started").exists)
        os.kill(int(result.components["process_id"]), signal.SIGKILL)
        (tmp_path / "go").touch()
        return await calls

    with open_runner("awaits_file", "process_id", timeout=SECONDS, num_workers=1) as runner:
        results = asyncio.run(score(runner))
    assert list(map(failure_kinds, results)) == [{}] * 4


def test_workers_that_cannot_start_are_reported_to_every_call(tmp_path: Path) -> None:
    module = tmp_path / "ends_all_workers.py"
    module.write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    os._exit(7)\n\ndef one(c, e):\n    return 1.0\n"
    )

    async def score(runner: RewardRunner) -> list[Any]:
        async with asyncio.timeout(SECONDS):
            return await asyncio.gather(*[runner.score(make_inputs(k)) for k in range(1, 6)], return_exceptions=True)

    with RewardRunner([f"{module}:one"], functions={}, timeout=1.0, num_workers=1) as runner:
        errors = asyncio.run(score(runner))
        assert [type(error) for error in errors] == [RewardError] * 5
        with pytest.raises(RewardError, match="ended with exit code 7"):
            runner.run(make_inputs(1))
    sys.path.remove(str(tmp_path))


def test_input_that_cannot_be_sent_fails_only_its_own_call() -> None:
    async def score(runner: RewardRunner) -> None:
        local = RewardInput("0", "x", {"function": lambda: 0})
        bad = asyncio.create_task(runner.score([local]))
        [good] = await _all(runner, make_inputs(2))
        assert failure_kinds(good) == {}
        with pytest.raises(Exception, match="pickle"):
            await bad

    with open_runner("length", timeout=SECONDS, num_workers=1) as runner:
        asyncio.run(score(runner))


# --- cancellation ------------------------------------------------------------------------------------------------


def test_cancelled_call_is_dropped_and_a_running_one_is_ignored(tmp_path: Path) -> None:
    async def score(runner: RewardRunner) -> None:
        running = asyncio.create_task(runner.score(_inputs(tmp_path, "running")))
        assert await asyncio.to_thread(wait_until, lambda: any(tmp_path.glob("running.*")))
        waiting = asyncio.create_task(runner.score(_inputs(tmp_path, *"abc")))
        later = asyncio.create_task(_all(runner, _inputs(tmp_path, "later")))
        await asyncio.sleep(0)  # the calls are made in this turn of the event loop
        assert waiting.cancel()
        assert running.cancel()
        await asyncio.wait([waiting, running])
        (tmp_path / "go").touch()
        [results] = await later
        assert failure_kinds(results) == {}
        assert waiting.cancelled()
        assert running.cancelled()
        assert sorted(path.stem for path in tmp_path.glob("*.*")) == ["later", "running"]

    with open_runner("waits_for_file", timeout=SECONDS, num_workers=1) as runner:
        asyncio.run(score(runner))


def test_closing_cancels_the_calls_that_wait(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            runner.run(_inputs(tmp_path, "waiting"))
        except CancelledError as error:
            errors.append(error)

    with open_runner("waits_for_file", timeout=SECONDS) as runner:
        thread = threading.Thread(target=run)
        thread.start()
        assert wait_until(lambda: any(tmp_path.glob("waiting.*")))
    thread.join(SECONDS)
    assert len(errors) == 1
    with pytest.raises(RuntimeError, match="have not been started"):
        runner.run(make_inputs(1))
    with runner:
        (tmp_path / "go").touch()
        assert failure_kinds(runner.run(_inputs(tmp_path, "again"))) == {}


# --- functions of this process -----------------------------------------------------------------------------------


class _MainThread:
    """Calls functions in this thread for coroutines that run in another one."""

    def __init__(self) -> None:
        self.jobs: Queue[Callable[[], None]] = Queue()
        self.count = 0

    async def run_here(self, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            finally:
                future.cancel()  # without effect, if there is a result

        self.jobs.put(job)
        return await asyncio.wrap_future(future)

    def drive(self, coroutine: Any) -> Any:
        """The result of `coroutine`, which runs in the event loop of another thread."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        result = asyncio.run_coroutine_threadsafe(coroutine, loop)
        result.add_done_callback(lambda future: self.jobs.put(lambda: None))
        try:
            while not result.done():
                self.jobs.get(timeout=SECONDS)()
                self.count += 1
            return result.result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(SECONDS)


def _local(function: Callable[..., Any], timeout: float = SECONDS) -> RewardRunner:
    return RewardRunner(["m:f"], functions={"m:f": function}, timeout=timeout, num_workers=None)


@pytest.fixture
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_handler")
def test_function_that_is_an_object_runs_in_the_main_thread_in_time_slices() -> None:
    def needs_main_thread(completion: str, example: Any) -> float:
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # a ValueError in any other thread
        time.sleep(0.01)
        return float(threading.current_thread() is threading.main_thread())

    main = _MainThread()
    with _local(needs_main_thread) as runner:
        runner.start(main.run_here)
        results = main.drive(_all(runner, make_inputs(10), make_inputs(10)))
    assert [[result.reward for result in each] for each in results] == [[1.0] * 10] * 2
    assert main.count > 4, "other things can happen between the slices"


@pytest.mark.usefixtures("_default_handler")
def test_interruption_of_a_function_in_the_main_thread_stops_the_run() -> None:
    def interrupted(completion: str, example: Any) -> float:
        signal.raise_signal(signal.SIGINT)
        return 1.0

    def raises(completion: str, example: Any) -> float:
        raise KeyboardInterrupt("not by the user")

    main = _MainThread()
    with _local(raises) as runner:
        runner.start(main.run_here)
        [[result]] = main.drive(_all(runner, make_inputs(1)))
        assert result.failure.traceback.endswith("KeyboardInterrupt: not by the user\n")
    with _local(interrupted) as runner:
        runner.start(main.run_here)
        with pytest.raises(KeyboardInterrupt):
            main.drive(_all(runner, make_inputs(1)))


def test_async_functions_of_this_process_do_not_occupy_the_main_thread() -> None:
    waiting: list[str] = []

    async def waits_for_all(completion: str, example: Any) -> float:
        waiting.append(completion)
        while len(waiting) < 12:
            await asyncio.sleep(0.01)
        return 1.0

    main = _MainThread()
    with _local(waits_for_all, timeout=SECONDS) as runner:
        runner.start(main.run_here)
        results = main.drive(_all(runner, *[make_inputs(4)] * 3))
    assert list(map(failure_kinds, results)) == [{}] * 3


def test_cancelled_call_of_an_async_function_of_this_process_is_cancelled() -> None:
    events: list[str] = []

    async def sleeps(completion: str, example: Any) -> float:
        events.append("started")
        try:
            await asyncio.sleep(SECONDS)
        finally:
            events.append("cancelled")
        return 1.0

    async def score(runner: RewardRunner) -> None:
        task = asyncio.create_task(runner.score(make_inputs(1)))
        assert await asyncio.to_thread(wait_until, lambda: bool(events))
        task.cancel()
        assert await asyncio.to_thread(wait_until, lambda: len(events) == 2)

    asyncio.run(score(_local(sleeps)))
    assert events == ["started", "cancelled"]


def test_functions_of_this_process_run_in_the_calling_thread_without_run_here() -> None:
    def in_main_thread(completion: str, example: Any) -> float:
        return float(threading.current_thread() is threading.main_thread())

    runner = _local(in_main_thread)
    assert [result.reward for result in asyncio.run(runner.score(make_inputs(3)))] == [1.0] * 3
    assert [result.reward for result in runner.run(make_inputs(3))] == [1.0] * 3
