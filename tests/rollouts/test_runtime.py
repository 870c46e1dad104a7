"""The event loop, the engine and the runtime: errors reach the main thread, and nothing waits forever."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from purerl.backends.fake import generator as fake
from purerl.backends.fake.model import BIGRAM
from purerl.backends.weights import TensorWeights
from purerl.data.chat import Prompt
from purerl.errors import EngineError, InputError
from purerl.protocols import Capabilities, Completion, Generator, Request, Sampling
from purerl.rollouts import event_loop, runtime
from purerl.rollouts.event_loop import EventLoop
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.settings import Model
from purerl.testing.rollouts.generator import ScriptedGenerator, random_tokens

SAMPLING = Sampling(temperature=1.0, max_tokens=4)


def scripted(**options: Any) -> ScriptedGenerator:
    return ScriptedGenerator(random_tokens(16), 16, **options)


def fake_generator(**settings: Any) -> Generator:
    return fake.build(fake.Config(**settings), model=Model("test"), seed=0)


def draw(number: int, key: str | None = None) -> Draw:
    return Draw(number, 0, {}, Prompt("b", [1]), key or str(number), (0, number))


def request(key: str, **changes: Any) -> Request:
    return Request(key, [1], SAMPLING, 0, **changes)


def row(completion: Completion) -> Trajectory:
    return Trajectory({"tokens": [1, *completion.tokens], "version": [0, *completion.version]})


async def one_turn(draw: Draw, generate: Generate) -> list[Trajectory]:
    return [row(completion) for completion in await generate([request(f"{draw.key}/0")])]


@contextmanager
def opened(generator: Generator | None, workflow: Any = one_turn, **options: Any) -> Iterator[Rollouts]:
    made = Runtime(generator, **{"stall_timeout": 20.0, **options})
    try:
        yield Rollouts(made, workflow)
    finally:
        made.close()


def wait_until(is_done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- the event loop ----------------------------------------------------------------------------------------------


def test_settle_waits_for_everything_that_is_ready() -> None:
    loop, steps = EventLoop(), []

    async def count() -> None:
        for k in range(100):
            await asyncio.sleep(0)
            steps.append(k)
        await asyncio.get_running_loop().create_future()

    future = asyncio.run_coroutine_threadsafe(count(), loop.asyncio)
    assert loop.settle(20.0)
    assert len(steps) == 100
    loop.close()
    assert future.cancelled()


def test_settle_gives_up_on_code_that_never_waits() -> None:
    loop, is_over = EventLoop(), threading.Event()
    loop.call(is_over.wait)
    assert not loop.settle(0.01)
    is_over.set()
    assert loop.settle(20.0)
    loop.close()
    loop.close()


def test_exit_of_a_task_does_not_end_the_event_loop() -> None:
    async def leaves(draw: Draw, generate: Generate) -> list[Trajectory]:
        raise SystemExit(3)

    async def child_leaves(draw: Draw, generate: Generate) -> list[Trajectory]:
        return await asyncio.ensure_future(leaves(draw, generate))

    for workflow in (leaves, child_leaves):
        with opened(None, workflow) as rollouts:
            rollouts.submit([draw(0)])
            [group] = rollouts.collect()
            assert group.failure is not None
            assert "SystemExit: 3" in group.failure.traceback


# --- closing -----------------------------------------------------------------------------------------------------


def test_close_cancels_coroutines_and_requests() -> None:
    generator, ended = scripted(), []

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        try:
            return await one_turn(draw, generate)
        finally:
            ended.append(draw.number)

    with opened(generator, workflow) as rollouts:
        generator.limit = 0
        rollouts.submit([draw(0), draw(1)])
        assert rollouts.collect(timeout=0.05) == []
        assert len(generator.pending) == 2
    assert sorted(ended) == [0, 1]
    assert generator.pending == {}
    assert generator.collect(0.0) == [], "the completions were collected"


def test_close_cancels_requests_of_an_engine_with_a_thread() -> None:
    generator = scripted()
    generator.limit = 0
    with opened(generator, background=True) as rollouts:
        rollouts.submit([draw(0)])
        wait_until(lambda: bool(generator.pending))
    assert generator.pending == {}
    assert generator.cancelled == ["0/0"]


def test_close_warns_about_what_does_not_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(event_loop, "_CLOSE_TIMEOUT", 0.05)
    is_over, cleaned = threading.Event(), []

    async def stubborn(draw: Draw, generate: Generate) -> list[Trajectory]:
        while not is_over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return []

    async def broken() -> None:
        raise OSError("no such process")

    async def clean() -> None:
        cleaned.append(1)

    with opened(None, stubborn) as rollouts, caplog.at_level(logging.WARNING):
        rollouts.runtime.add_cleanup(broken)
        rollouts.runtime.add_cleanup(clean)
        rollouts.submit([draw(0)])
        rollouts.runtime.loop.settle(20.0)
        rollouts.runtime.close()
        is_over.set()
    assert "a coroutine did not end within 0.05 seconds" in caplog.text
    assert "OSError: no such process" in caplog.text
    assert cleaned == [1], "after a cleanup that has failed"


def test_close_abandons_a_blocked_event_loop(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(event_loop, "_CLOSE_TIMEOUT", 0.05)
    is_over = threading.Event()

    async def blocks(draw: Draw, generate: Generate) -> list[Trajectory]:
        is_over.wait()
        return []

    with opened(None, blocks) as rollouts, caplog.at_level(logging.WARNING):
        rollouts.submit([draw(0)])
        rollouts.runtime.close()
        is_over.set()
    assert "the event loop is blocked" in caplog.text


# --- errors of generators ----------------------------------------------------------------------------------------


class Broken(ScriptedGenerator):
    """Raises, loses or invents what `fault` says when it collects."""

    fault = "raise"

    def collect(self, timeout: float | None = None) -> list[Completion]:
        if self.fault == "raise":
            raise MemoryError("no memory on the device")
        if self.fault == "lose":
            self.pending = {}
            return []
        completions = super().collect(timeout)
        return completions * 2 if self.fault == "twice" else [Completion("7/7", [], [], [], "stop")]


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("raise", MemoryError, "no memory on the device"),
        ("lose", EngineError, "lost requests"),
        ("twice", EngineError, "completion of '0/0', which is not in flight"),
        ("invent", EngineError, "completion of '7/7', which is not in flight"),
    ],
)
def test_errors_of_a_generator_reach_the_main_thread(
    background: bool, fault: str, error: type[Exception], words: str
) -> None:
    generator = Broken(random_tokens(16), 16)
    generator.fault = fault
    with opened(generator, background=background) as rollouts:
        rollouts.submit([draw(0)])
        with pytest.raises(error, match=words):
            rollouts.collect()


@pytest.mark.parametrize("background", [False, True])
def test_weights_cannot_be_loaded_after_the_engine_has_failed(background: bool) -> None:
    with opened(Broken(random_tokens(16), 16), background=background) as rollouts:
        rollouts.submit([draw(0)])
        with pytest.raises(MemoryError):
            rollouts.collect()
        if background:
            with pytest.raises(EngineError, match="the engine has failed"):
                rollouts.runtime.load_weights(TensorWeights({}), 1)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([Request("a", [99], SAMPLING, 0)], "token 99"),
        ([request("a"), request("a")], "request 'a': got a key that is in use|a key that is in use"),
    ],
)
def test_invalid_requests_stop_the_run(background: bool, requests: Sequence[Request], words: str) -> None:
    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        return [row(completion) for completion in await generate(requests)]

    with opened(fake_generator(), workflow, background=background) as rollouts:
        rollouts.submit([draw(0)])
        with pytest.raises(InputError, match=words):
            rollouts.collect()


def test_key_of_another_draw_in_flight_is_refused() -> None:
    with opened(scripted()) as rollouts:
        rollouts.submit([draw(0, key="x"), draw(1, key="x")])
        with pytest.raises(InputError, match="begin the keys of a workflow with draw.key"):
            rollouts.collect(draws=[0, 1])


def test_error_of_purerl_in_a_group_of_exceptions_stops_the_run() -> None:
    async def fails() -> None:
        raise EngineError("no engine")

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())
        return []

    with opened(None, workflow) as rollouts:
        rollouts.submit([draw(0)])
        with pytest.raises(EngineError, match="no engine"):
            rollouts.collect()


# --- functions for the main thread -------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", [None, scripted()])
def test_interrupt_in_a_function_of_the_main_thread(generator: Generator | None) -> None:
    threads, interrupt = [], [True]

    def function() -> int:
        threads.append(threading.current_thread())
        if interrupt.pop():
            raise KeyboardInterrupt
        return 3

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        await made.run_here(function)
        return []

    with opened(generator, workflow) as rollouts:
        made = rollouts.runtime
        rollouts.submit([draw(0)])
        with pytest.raises(KeyboardInterrupt):
            rollouts.collect()
        [group] = rollouts.collect(timeout=20.0)
        assert group.failure is not None, "what has waited for the function was cancelled"
        interrupt.append(False)
        rollouts.submit([draw(1)])
        assert [group.failure for group in rollouts.collect()] == [None]
    assert {*threads} == {threading.main_thread()}


def test_function_runs_while_coroutines_never_wait() -> None:
    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        done = asyncio.ensure_future(_await(made.run_here(lambda: 3)))
        while not done.done():
            await asyncio.sleep(0)
        return []

    with opened(scripted(), workflow) as rollouts:
        made = rollouts.runtime
        rollouts.submit([draw(0)])
        assert len(rollouts.collect(timeout=20.0)) == 1


async def _await(value: Any) -> Any:
    return await value


# --- stalls ------------------------------------------------------------------------------------------------------


class Silent(ScriptedGenerator):
    """Decodes on its own, and never finishes."""

    def __init__(self) -> None:
        super().__init__(random_tokens(16), 16)
        self.capabilities = Capabilities()
        self.limit = 0


async def waits(draw: Draw, generate: Generate) -> list[Trajectory]:
    return await asyncio.get_running_loop().create_future()


async def spins(draw: Draw, generate: Generate) -> list[Trajectory]:
    while True:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("generator", "workflow"), [(Silent(), one_turn), (None, waits), (scripted(), waits), (scripted(), spins)]
)
def test_stall_is_a_warning_and_then_an_error(
    generator: Generator | None, workflow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime, "_WARN_AFTER", 0.05)
    with opened(generator, workflow, stall_timeout=0.3) as rollouts, caplog.at_level(logging.WARNING):
        rollouts.submit([draw(4), draw(5)])
        with pytest.raises(EngineError, match="nothing happens while waiting for the groups of 2 draws, such as 4"):
            rollouts.collect()
        rollouts.cancel([4, 5])
    assert "nothing has happened for 0 s while waiting for the groups of 2 draws" in caplog.text


def test_completions_of_a_group_are_progress() -> None:
    """A group takes longer than the limit, but its completions do not."""

    async def turns(draw: Draw, generate: Generate) -> list[Trajectory]:
        for k in range(8):
            await generate([request(f"{draw.key}/{k}")])
        return []

    generator = fake_generator(in_process=False, seconds_per_token=0.02)
    with opened(generator, turns, stall_timeout=0.5) as rollouts:
        rollouts.submit([draw(0)])
        start = time.monotonic()
        assert len(rollouts.collect()) == 1
        assert time.monotonic() - start > 0.5
    generator.close()


# --- weights, evaluation, notebooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"in_process": False, "seconds_per_token": 0.01}, {"seconds_per_token": 0.01}])
def test_requests_in_flight_continue_with_new_weights(settings: dict[str, Any]) -> None:
    async def long(draw: Draw, generate: Generate) -> list[Trajectory]:
        sampling = Sampling(temperature=1.0, max_tokens=60)
        return [row(c) for c in await generate([Request(f"{draw.key}/0", [1], sampling, 0)])]

    generator = fake_generator(**settings)
    with opened(generator, long, background=True) as rollouts:
        rollouts.submit([draw(0)])
        wait_until(lambda: bool(rollouts.runtime.engine and rollouts.runtime.engine.num_awaited))
        for version in range(1, 200):
            rollouts.runtime.load_weights(TensorWeights({BIGRAM: torch.zeros(16, 16)}), version)
            if groups := rollouts.collect(timeout=0.01):
                break
        [group] = groups
    generator.close()
    versions = group.trajectories[0].fields["version"][1:]
    assert len(versions) == 60
    assert versions == sorted(versions)
    assert len({*versions}) > 1, "weights have changed while the request was in flight"


def test_two_workflows_share_a_runtime() -> None:
    generator = scripted(order=0)
    with opened(generator) as training:
        evaluation = Rollouts(training.runtime, one_turn)
        generator.limit = 0
        training.submit([draw(k) for k in range(3)])
        assert training.collect(timeout=0.05) == []
        generator.limit = None
        evaluation.submit([draw(k, key=f"eval/{k}") for k in range(4)])
        assert {group.draw for group in evaluation.collect(draws=range(4))} == {0, 1, 2, 3}
        assert evaluation.in_flight == []
        assert sorted(training.in_flight) == [0, 1, 2], "the groups of training wait for their own collect"
        assert {group.draw for group in training.collect(draws=range(3))} == {0, 1, 2}


def test_engine_decodes_for_those_who_hold_what_others_wait_for() -> None:
    """An evaluation waits for a slot that an episode of training has, which waits for its next turn."""
    generator = scripted()
    with opened(generator) as training:
        slot = asyncio.Semaphore(1)

        async def episode(draw: Draw, generate: Generate) -> list[Trajectory]:
            async with slot:
                return await one_turn(draw, generate)

        training.workflow = episode
        evaluation = Rollouts(training.runtime, episode)
        generator.limit = 0
        training.submit([draw(0)])
        assert training.collect(timeout=0.05) == []
        generator.limit = None
        evaluation.submit([draw(0, key="eval/0")])
        assert len(evaluation.collect(timeout=20.0)) == 1


def test_runs_inside_of_a_running_event_loop() -> None:
    async def notebook_cell() -> int:
        with opened(scripted()) as rollouts:
            rollouts.submit([draw(0)])
            return len(rollouts.collect())

    assert asyncio.run(notebook_cell()) == 1


# --- draws -------------------------------------------------------------------------------------------------------


def test_cancelled_request_that_was_not_submitted_yet_is_not_sampled() -> None:
    generator = scripted()

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        task = asyncio.ensure_future(generate([request(f"{draw.key}/0")]))
        await asyncio.sleep(0)
        task.cancel()
        return [row(completion) for completion in await generate([request(f"{draw.key}/1")])]

    with opened(generator, workflow) as rollouts:
        rollouts.submit([draw(0)])
        assert len(rollouts.collect()) == 1
    assert [*generator.completions] == ["0/1"]
    assert generator.cancelled == ["0/0"]


def test_workflow_that_fails_leaves_no_requests() -> None:
    generator = scripted()
    generator.limit = 0

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        task = asyncio.ensure_future(generate([request(f"{draw.key}/0")]))
        await asyncio.sleep(0)
        raise ValueError(f"{task!r:.0}")

    with opened(generator, workflow) as rollouts:
        rollouts.submit([draw(0)])
        [group] = rollouts.collect()
        assert group.failure is not None
        rollouts.collect(timeout=0.01)
        rollouts.runtime.drive(lambda: True, waits_for=lambda: "")
    assert generator.cancelled == ["0/0"]


def test_number_can_be_used_again_after_its_draw_was_cancelled() -> None:
    generator = scripted()
    with opened(generator) as rollouts:
        generator.limit = 0
        rollouts.submit([draw(0)])
        assert rollouts.collect(timeout=0.05) == []
        with pytest.raises(InputError, match="draw 0: got a number that is in flight|a number that is in flight"):
            rollouts.submit([draw(0)])
        rollouts.cancel([0])
        generator.limit = None
        rollouts.submit([draw(0, key="again")])
        [group] = rollouts.collect()
        assert group.draw == 0
        assert [*generator.completions] == ["again/0"]
        assert rollouts.progress() == (2, 2)
        assert rollouts.collect() == []


def test_groups_survive_an_interrupted_collect() -> None:
    generator = scripted()

    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        rows = await one_turn(draw, generate)
        if draw.number == 1 and interrupt:
            await made.run_here(_interrupt)
        return rows

    interrupt = True
    with opened(generator, workflow) as rollouts:
        made = rollouts.runtime
        rollouts.submit([draw(0), draw(1)])
        with pytest.raises(KeyboardInterrupt):
            rollouts.collect(draws=[0, 1])
        assert sorted(rollouts.in_flight) == [0, 1]
        assert sorted(group.draw for group in rollouts.collect(draws=[0, 1])) == [0, 1]


def _interrupt() -> None:
    raise KeyboardInterrupt
