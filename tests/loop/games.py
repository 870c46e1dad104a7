"""Environments of runs in tests. Worker processes import them, so imports are few."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from purerl.envs.protocol import Observation

TURNS = 3


class Evens:
    """The reward of each of three turns is 1 if it starts with an even digit. The state is the number of the turn.

    `mishap` happens in the second turn of every example whose answer is a multiple of `every`.
    """

    def __init__(self, mishap: str = "", every: int = 1) -> None:
        self._mishap, self._every = mishap, every

    def reset(self, example: Any, seed: int) -> Observation:
        self._turns = 0
        self._is_unlucky = bool(self._mishap) and int(example["answer"]) % self._every == 0
        return Observation(messages=[{"role": "user", "content": "0"}], state="start")

    def step(self, text: str, calls: Any) -> Observation:
        self._turns += 1
        if self._is_unlucky and self._turns == 2:
            getattr(self, self._mishap)()
        reward, is_over = float(text[:1] in set("02468")), self._turns == TURNS
        message = {"role": "user", "content": str(self._turns)}
        return Observation(messages=[message], reward=reward, done=is_over, state=f"turn {self._turns}")

    def close(self) -> None:
        pass

    def raises(self) -> None:
        raise ValueError("an unlucky game")

    def hangs(self) -> None:
        time.sleep(60.0)

    def dies(self) -> None:
        os._exit(9)


class SlowEvens(Evens):
    """Its answers take other times in each run."""

    def step(self, text: str, calls: Any) -> Observation:
        time.sleep(random.SystemRandom().uniform(0.0, 0.02))  # the worker has seeded the other generators
        return super().step(text, calls)


class AsyncEvens(Evens):
    """The same as coroutines, for the event loop."""

    async def reset(self, example: Any, seed: int) -> Observation:
        return super().reset(example, seed)

    async def step(self, text: str, calls: Any) -> Observation:
        return super().step(text, calls)

    async def close(self) -> None:
        pass
