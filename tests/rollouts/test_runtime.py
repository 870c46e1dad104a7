"""The runtime: errors reach the main thread, and nothing waits forever."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from purerl.backends.weights import TensorWeights
from purerl.errors import EngineError, InputError
from purerl.protocols import Capabilities, Completion, Generator, Request
from purerl.rollouts import runtime
from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.testing.rollouts.generator import ScriptedGenerator, random_tokens
from tests.rollouts.runtimes import SAMPLING, draw, fake_generator, one_turn, opened, request, row, scripted

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
