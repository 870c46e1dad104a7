"""A generator whose completions are also passed to a callback, for example to show progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from purerl.protocols import Capabilities, Completion, Generator, Request, Weights

__all__ = ["Observed", "OnCompletion"]

OnCompletion = Callable[[Sequence[Completion]], None]


@frozen
class Observed:
    """`generator`, which calls `on_completion` with the completions of each `collect`.

    After `submit` it calls `on_completion` with an empty list.
    """

    generator: Generator
    on_completion: OnCompletion

    @property
    def capabilities(self) -> Capabilities:
        return self.generator.capabilities

    def submit(self, requests: Sequence[Request]) -> None:
        self.generator.submit(requests)
        self.on_completion([])

    def collect(self, timeout: float | None = None) -> list[Completion]:
        completions = self.generator.collect(timeout)
        self.on_completion(completions)
        return completions

    def cancel(self, keys: Sequence[str]) -> None:
        self.generator.cancel(keys)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self.generator.load_weights(weights, version=version)

    def close(self) -> None:
        self.generator.close()
