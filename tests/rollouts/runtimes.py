"""Runtimes with scripted engines, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from purerl.backends.fake import generator as fake
from purerl.data.chat import Prompt
from purerl.protocols import Completion, Generator, Request, Sampling
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Generate, Trajectory
from purerl.settings import Model
from purerl.testing.rollouts.generator import ScriptedGenerator, random_tokens

__all__ = ["SAMPLING", "draw", "fake_generator", "one_turn", "opened", "request", "row", "scripted", "wait_until"]

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
