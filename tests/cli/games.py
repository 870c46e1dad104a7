"""An environment and tools that the tests of the command line name."""

from __future__ import annotations

from purerl.envs.protocol import Observation


class Count:
    """Three turns. Each is worth `value`."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def reset(self, example, seed):
        self.number = 0
        return Observation(messages=[{"role": "user", "content": "0"}])

    def step(self, text, calls):
        self.number += 1
        messages = [{"role": "user", "content": f"{self.number}"}]
        return Observation(messages=messages, reward=self.value, done=self.number == 3)

    def close(self):
        pass


class NeverStarts(Count):
    def reset(self, example, seed):
        raise RuntimeError("no board")


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def without_hints(first, second):
    """Add two numbers."""
    return first + second
