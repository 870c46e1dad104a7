"""Episodes that wait for each other: the generator gets the requests of a turn together, in one order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import define, field

from purerl.envs.protocol import Observation
from purerl.protocols import Request
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.testing.rollouts.generator import ScriptedGenerator
from tests.rollouts.episodes import STOP, TWO_TURNS, Scripted, draw, user, workflow


class Submissions(ScriptedGenerator):
    """Keeps the keys of requests that are submitted together, and the keys that it may forget after each of them."""

    def __init__(self) -> None:
        super().__init__(lambda request, rng: [rng.randrange(2, 16), STOP], 16)
        self.submitted: list[tuple[str, ...]] = []
        self.dropped: list[set[str]] = []

    def submit(self, requests: Sequence[Request]) -> None:
        self.submitted.append(tuple(request.key for request in requests))
        self.dropped.append(set())
        super().submit(requests)

    def cancel(self, keys: Sequence[str]) -> None:
        self.dropped[-1].update(keys)
        super().cancel(keys)


@define
class Late(Scripted):
    """Answers after a random time."""

    rng: random.Random = field(factory=random.SystemRandom)

    async def _answer(self) -> Observation:
        await asyncio.sleep(self.rng.uniform(0.0, 0.02))
        return await super()._answer()


def _play(build: Any, *, waits: bool = True, draws: int = 3, **changes: Any) -> Submissions:
    """Play two episodes of each draw; return what the generator was asked for."""
    generator = Submissions()
    runtime = Runtime(generator, stall_timeout=20.0)
    made, _ = workflow(build, open_requests=runtime.episodes(in_lockstep=waits), **changes)
    rollouts = Rollouts(runtime, made)
    try:
        rollouts.submit([draw(number) for number in range(draws)])
        groups = rollouts.collect(draws=range(draws))
        assert [group.failure for group in groups] == [None] * draws
    finally:
        runtime.close()
    return generator


FIRST = ("0/0", "0/1", "1/0", "1/1", "2/0", "2/1")
SECOND = tuple(f"{key}.1" for key in FIRST)


def test_requests_of_a_turn_are_submitted_together_in_the_order_of_episodes() -> None:
    assert _play(lambda k: Late(TWO_TURNS)).submitted == [FIRST, SECOND]


def test_episodes_that_do_not_wait_continue_when_their_environment_has_answered() -> None:
    """The environment of the second episode answers after the second turn of the first one."""
    is_ahead = asyncio.Event()

    class First(Scripted):
        async def _answer(self) -> Observation:
            if len(self.given) == 2:
                is_ahead.set()
            return await super()._answer()

    class Second(Scripted):
        async def _answer(self) -> Observation:
            if len(self.given) == 1:
                await is_ahead.wait()
            return await super()._answer()

    generator = _play(lambda k: Second(TWO_TURNS) if k else First(TWO_TURNS), draws=1, waits=False)
    assert generator.submitted == [("0/0", "0/1"), ("0/0.1",), ("0/1.1",)]


def test_nobody_waits_for_an_episode_that_is_over_or_has_failed() -> None:
    short = (Observation(messages=[user("f")]), Observation(reward=1.0, done=True))
    scripts = {0: TWO_TURNS, 1: short, 2: (TWO_TURNS[0], ValueError("no such move")), 3: (ValueError("no such level"),)}
    generator = _play(lambda k: Late(scripts[k]), draws=2, samples_per_prompt=4)
    assert generator.submitted == [("0/0", "0/1", "0/2", "1/0", "1/1", "1/2"), ("0/0.1", "1/0.1")]


def test_nobody_waits_until_an_environment_has_closed() -> None:
    class Lingers(Late):
        async def close(self) -> None:
            await asyncio.sleep(0 if len(self.given) > 2 else 0.5)
            closed.append(time.monotonic())

    closed: list[float] = []
    short = (Observation(messages=[user("f")]), Observation(reward=1.0, done=True))
    _play(lambda k: Lingers(TWO_TURNS if k else short), draws=1)
    assert len(closed) == 2
    assert closed[1] - closed[0] > 0.2, "the longer episode has closed first"


@pytest.mark.parametrize("repetition", range(3))
def test_what_is_kept_of_an_episode_is_released_between_two_turns(repetition: int) -> None:
    """When an episode ends depends on time, and so would the room for the sequences of others."""
    three = (TWO_TURNS[0], TWO_TURNS[1], TWO_TURNS[1], TWO_TURNS[2])
    short = (Observation(messages=[user("f")]), Observation(reward=1.0, done=True))
    generator = _play(lambda k: Late(three if k else short), draws=2)
    assert [keys for keys in generator.submitted if keys] == [
        ("0/0", "0/1", "1/0", "1/1"),
        ("0/1.1", "1/1.1"),
        ("0/1.2", "1/1.2"),
    ]
    assert generator.dropped[0] == set()
    assert generator.dropped[1] == {"0/0", "1/0"}, "the first episodes have ended after their first turn"
    assert generator.dropped[2] >= {"0/1", "0/1.1", "0/1.2"}


def test_waiting_takes_no_processor_time() -> None:
    class VeryLate(Scripted):
        async def _answer(self) -> Observation:
            await asyncio.sleep(0.5 if self.given else 0.0)
            return await super()._answer()

    start, before = time.monotonic(), time.process_time()
    _play(lambda k: VeryLate(TWO_TURNS) if k else Scripted(TWO_TURNS), draws=1)
    assert time.monotonic() - start > 0.5
    assert time.process_time() - before < 0.3


def test_cancelled_episode_is_not_waited_for() -> None:
    generator = Submissions()
    runtime = Runtime(generator, stall_timeout=20.0)

    async def never() -> Observation:
        await asyncio.Event().wait()
        raise AssertionError

    class Hangs(Scripted):
        async def _answer(self) -> Observation:
            return await never()

    made, _ = workflow(lambda k: Scripted(TWO_TURNS), open_requests=runtime.episodes(in_lockstep=True))
    hanging, _ = workflow(lambda k: Hangs(TWO_TURNS), open_requests=runtime.episodes(in_lockstep=True))
    first, second = Rollouts(runtime, hanging), Rollouts(runtime, made)
    try:
        first.submit([draw(0)])
        second.submit([draw(1)])
        assert second.collect(0.2) == []
        assert generator.submitted == []
        first.cancel([0])
        assert [group.draw for group in second.collect(10.0)] == [1]
        second.submit([draw(2), draw(3)])
        second.cancel([2])  # perhaps before it has asked for anything
        assert [group.draw for group in second.collect(10.0)] == [3]
    finally:
        runtime.close()
    assert generator.submitted[:2] == [("1/0", "1/1"), ("1/0.1", "1/1.1")]
