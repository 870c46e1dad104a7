"""Hosting of environments: worker processes, threads, the event loop, and what happens when the code misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purerl.envs.hosts import episode
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import RolloutError
from tests.envs.hosts import MODULE, ROOT, check_end, failure_of, hosted, play, say, settings
from tests.rewards.processes import check_terminates, child_guards, wait_until


@pytest.mark.started_workers
@pytest.mark.parametrize("run_in", ["process", "thread"])
def test_episodes_of_blocking_code_are_the_same_wherever_it_runs(run_in: str) -> None:
    async def play_many(host):
        return await asyncio.gather(*(play(host, seed) for seed in range(20)))

    plain = []
    for seed in range(20):
        from tests.envs.environments import Guess

        game = Guess()
        plain.append([game.reset({}, seed)])
        for guess in ("4", "2", "6", "1", "3", "5", "7", "8"):
            if not plain[-1][-1].done:
                plain[-1].append(game.step(guess, ()))
    actual = hosted(play_many, settings("Guess", run_in=run_in, num_workers=2, has_states=True))
    keys = [[(o.reward, o.done, o.state, [*o.messages]) for o in episode] for episode in actual]
    assert keys == [[(o.reward, o.done, o.state, [*o.messages]) for o in episode] for episode in plain]


@pytest.mark.parametrize("run_in", ["process", "event_loop"])
def test_coroutines_of_many_episodes_run_concurrently(run_in: str) -> None:
    async def play_many(host):
        start = time.monotonic()
        all_observations = await asyncio.gather(*(play(host, seed, ("0",)) for seed in range(50)))
        return max(int(o[1].messages[0]["content"]) for o in all_observations), time.monotonic() - start

    most, _ = hosted(play_many, settings("AsyncGuess", run_in=run_in))
    assert most > 10, "the number of steps at the same time"


@pytest.mark.parametrize("run_in", ["process", "thread"])
def test_end_by_a_limit(run_in: str) -> None:
    hosted(check_end, settings("Ends", run_in=run_in, has_states=True))


def test_end_without_such_a_method_or_with_a_wrong_one() -> None:
    async def without(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await opened.end("turns", "")

    async def wrong(host, reason):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await failure_of(opened.end(reason, ""))

    assert hosted(without, settings("Guess")) is None
    assert (
        "need a purerl.envs.protocol.Observation"
        in hosted(lambda host: wrong(host, "turns"), settings("EndsWrongly", run_in="thread")).traceback
    )
    assert (
        "KeyError: 'length'"
        in hosted(lambda host: wrong(host, "length"), settings("EndsWrongly", run_in="thread")).traceback
    )


def test_factory_with_arguments_and_function_as_factory() -> None:
    assert (
        "from 1 to 3." in hosted(lambda h: play(h, 0), settings("Guess", kwargs={"limit": 3}))[0].messages[0]["content"]
    )
    assert (
        "from 1 to 4."
        in hosted(lambda h: play(h, 0), settings("makes_guess", kwargs={"limit": 4}))[0].messages[0]["content"]
    )


def test_blocking_code_runs_in_the_main_thread_of_a_worker_and_its_random_numbers_depend_on_its_seed() -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 1)
            await second.reset({}, 1)
            assert await say(first, "thread") == "MainThread"
            assert int(await say(first, "pid")) != os.getpid()
            await say(second, "say x")
            await say(second, "say x")
            mixed = [await say(second, "random"), await say(first, "random"), await say(first, "random")]
            assert mixed[0] == mixed[1], "the third step of each episode"
            assert mixed[1] != mixed[2]

    hosted(main, settings())


# --- failures ----------------------------------------------------------------------------------------------------


def test_exception_is_a_failure_with_its_traceback_and_close_is_called(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def main(host):
        async with episode(host) as opened:
            await opened.reset({"log": str(log)}, 0)
            failure = await failure_of(opened.step("raise here", ()))
        assert (failure.function, failure.kind) == (f"{MODULE}:Obeys", "raised")
        assert failure.traceback.endswith("ZeroDivisionError: here\n")
        assert "do_raise" in failure.traceback
        assert "purerl/envs" not in failure.traceback.replace("tests/envs", "")

    for run_in in ("process", "thread"):
        hosted(main, settings(run_in=run_in))
    assert log.read_text() == "closed\nclosed\n"


@pytest.mark.parametrize("run_in", ["process", "thread", "event_loop"])
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("exit", "raised", "SystemExit(3)"),
        ("invalid", "returned an invalid value", "need a purerl.envs.protocol.Observation"),
    ],
)
def test_failure_is_described(text: str, kind: str, words: str, run_in: str) -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            failure = await failure_of(opened.step(text, ()))
            assert failure.kind == kind
            assert words in failure.traceback
            return await say(opened, "say still here")

    name = "AsyncObeys" if run_in == "event_loop" else "Obeys"
    assert hosted(main, settings(name, run_in=run_in)) == "still here"


@pytest.mark.parametrize("run_in", ["process", "event_loop"])
def test_coroutine_that_waits_forever_or_cancels_itself_fails_only_its_episode(run_in: str) -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            failure = await failure_of(first.step("wait", ()))
            assert failure.kind == "timed out"
            assert "took longer than 1 seconds" in failure.traceback
            assert "in _wait" in failure.traceback
            assert (await failure_of(second.step("cancel", ()))).kind == "raised"
            assert await say(second, "say fine") == "fine"

    hosted(main, settings("AsyncObeys", run_in=run_in, timeout=1.0))


def test_call_that_hangs_fails_only_its_episode_and_its_process_is_replaced() -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            pid = await say(second, "pid")
            assert await say(first, "pid") == pid
            failure = await failure_of(first.step("sleep 600", ()))
            assert failure.kind == "timed out"
            assert "in do_sleep" in failure.traceback
            assert await say(second, "say fine") == "fine", "the other episode continues in the same process"
            async with episode(host) as third:
                await third.reset({}, 0)
                assert await say(third, "pid") != pid
            assert await say(second, "pid") == pid
        await asyncio.to_thread(check_terminates, int(pid))

    hosted(main, settings(timeout=1.0))


def test_process_whose_interpreter_is_blocked_is_ended_with_all_its_episodes() -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            failure = await failure_of(first.step("hold", ()))
            assert failure.kind == "timed out"
            assert "do_hold" in failure.traceback
            failure = await failure_of(second.step("say x", ()))
            assert failure.kind == "died"
            assert "another episode" in failure.traceback
        async with episode(host) as third:
            await third.reset({}, 0)
            assert await say(third, "say new") == "new"

    hosted(main, settings(timeout=1.0))


@pytest.mark.parametrize("text", ["crash", "kill"])
def test_process_that_dies_fails_its_episodes_and_is_replaced(text: str) -> None:
    async def main(host):
        async with episode(host) as first, episode(host) as second:
            await first.reset({}, 0)
            await second.reset({}, 0)
            if text == "kill":
                waiting = asyncio.create_task(failure_of(first.step("sleep 600", ())))
                os.kill(int(await say_pid(host)), signal.SIGKILL)
                failure = await waiting
            else:
                failure = await failure_of(first.step("crash", ()))
            assert failure.kind == "died"
            assert f"exit code {9 if text == 'crash' else -9}" in failure.traceback
            assert (await failure_of(second.step("say x", ()))).kind == "died"
        assert len(await play_text(host)) == 2

    async def say_pid(host):
        return child_worker()

    async def play_text(host):
        async with episode(host) as third:
            return [await third.reset({}, 0), await third.step("say x", ())]

    hosted(main, settings())


def test_process_that_is_stopped_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purerl.envs.pool._HEARTBEAT_GRACE", 2.0)

    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            os.kill(int(await say(opened, "pid")), signal.SIGSTOP)
            return await failure_of(opened.step("say x", ()))

    failure = hosted(main, settings(timeout=1.0))
    assert failure.kind == "timed out"


def child_worker() -> int:
    """The process id of the only worker: the child of the only guard."""
    [guard] = child_guards()
    found = []

    def search() -> bool:
        found[:] = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        return bool(found)

    assert wait_until(search)
    return int(found[0])


def test_memory_limit() -> None:
    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            return await failure_of(opened.step("memory", ()))

    failure = hosted(main, settings(max_memory=700))
    assert failure.kind == "ran out of memory"
    assert "700 MiB" in failure.traceback


def test_environment_that_cannot_be_created() -> None:
    failure = hosted(lambda host: failure_of(host.open()), settings("FailsToStart"))
    assert failure.kind == "raised"
    assert "no display" in failure.traceback


def test_worker_that_cannot_start_ends_the_run(tmp_path: Path) -> None:
    module = tmp_path / "ends_environments.py"
    module.write_text(f"import os\nif os.getpid() != {os.getpid()}:\n    os._exit(7)\n\nclass Game: ...\n")

    async def main(host):
        with pytest.raises(RolloutError, match="3 starts in a row failed; the last one ended with exit code 7"):
            await host.open()

    hosted(main, EnvironmentSettings(factory=f"{module}:Game", num_workers=1))


def test_too_many_threads_that_cannot_be_ended_end_the_run() -> None:
    async def main(host):
        for _ in range(2):
            async with episode(host) as opened:
                await opened.reset({}, 0)
                failure = await failure_of(opened.step("sleep 3", ()))
                assert failure.kind == "timed out"
                assert "in do_sleep" in failure.traceback
        with pytest.raises(RolloutError, match="2 calls that did not end in time"):
            await host.open()

    hosted(main, settings(run_in="thread", num_workers=2, timeout=0.5))


def test_canceled_workflow_leaves_no_episode_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run(host):
        async with episode(host) as opened:
            await opened.reset({"log": str(log)}, 0)
            await opened.step("sleep 0.5", ())

    async def main(host):
        task = asyncio.create_task(run(host))
        await asyncio.sleep(0.3)
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
        async with episode(host) as opened:
            await opened.reset({}, 0)
            assert await say(opened, "say x") == "x"

    for run_in in ("process", "thread"):
        hosted(main, settings(run_in=run_in))


@pytest.mark.parametrize("run_in", ["process", "thread"])
def test_environment_that_is_being_created_for_a_canceled_workflow_is_closed(tmp_path: Path, run_in: str) -> None:
    log = tmp_path / "log"

    async def main(host):
        task = asyncio.create_task(host.open())
        while not log.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        log.with_name("go on").touch()
        while log.read_text().split() != ["created", "closed"]:
            await asyncio.sleep(0.01)

    hosted(main, settings("SlowToCreate", run_in=run_in, kwargs={"log": str(log)}))


def test_process_that_hangs_in_close_is_replaced_although_nobody_waits_anymore() -> None:
    async def main(host):
        opened = await host.open()
        [process] = host._processes
        closing = asyncio.create_task(opened.close())
        await asyncio.wait({closing}, timeout=0.2)
        closing.cancel()
        while process in host._processes:
            await asyncio.sleep(0.01)

    hosted(main, settings("HangsInClose", timeout=1.0))


# --- processes that environments have started --------------------------------------------------------------------

SCRIPT = """
import asyncio
from purerl.envs.hosts import open_host
from purerl.envs.settings import EnvironmentSettings

async def main():
    opened = await open_host(EnvironmentSettings(factory="tests.envs.environments:Obeys", num_workers=1)).open()
    await opened.reset({{}}, 0)
    await opened.step("daemon {path}", ())
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_everything_ends_with_the_host_and_when_the_run_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    async def main(host):
        async with episode(host) as opened:
            await opened.reset({}, 0)
            await opened.step(f"daemon {path}", ())

    hosted(main, settings())
    check_terminates(int(path.read_text()))
    assert child_guards() == []
    path.unlink()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sys.path)))}
    with subprocess.Popen([sys.executable, "-c", SCRIPT.format(path=path)], env=environment) as run:
        assert wait_until(lambda: path.exists() and path.read_text() != "")
        run.kill()
        run.wait()
        check_terminates(int(path.read_text()))
