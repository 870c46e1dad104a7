"""Classes for TRL's `environment_factory`, and reward functions that read them."""

from __future__ import annotations


class Counter:
    """Counts; the reward is 1 if the sum is the target."""

    def __init__(self) -> None:
        self.total = 0
        self.target = 0

    def reset(self, target: int = 0, **columns: object) -> str:
        self.total, self.target = 0, target
        return f"Reach {target}."

    def add(self, number: int) -> int:
        """Add a number to the total.

        Args:
            number: The number to add.

        Returns:
            The new total.
        """
        self.total += number
        return self.total

    async def divide(self, number: int) -> float:
        """Divide the total by a number.

        Args:
            number: The divisor.

        Returns:
            The new total.
        """
        self.total = self.total // number
        return self.total

    def _private(self) -> None:
        raise AssertionError("not a tool")

    def get_reward(self) -> float:
        return float(self.total == self.target)


class Talk:
    """Its reward comes from reward functions only."""

    def reset(self, **columns: object) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> str:
        """Say something.

        Args:
            text: What to say.
        """
        self.said.append(text)
        return "ok"


class AsyncReward(Counter):
    async def get_reward(self) -> float:
        return self.total / 10


class Seeded(Counter):
    def reset(self, seed: int, **columns: object) -> None:
        self.seed = seed


def near(completions, environments, target, **kwargs):
    return [-abs(e.total - t) / 10 for e, t in zip(environments, target, strict=True)]


def turns(prompts, completions, **kwargs):
    return [float(sum(message["role"] == "assistant" for message in completion)) for completion in completions]


def nothing(completions, **kwargs):
    return [None for _ in completions]


def said(environments, **kwargs):
    return [float(len(environment.said)) for environment in environments]


def needs_ids(completions, completion_ids, **kwargs):
    return [0.0]


async def later(environments, **kwargs):
    return [float(environment.total) for environment in environments]
