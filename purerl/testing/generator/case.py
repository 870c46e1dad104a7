"""The argument of each check of a generator."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from purerl.backends.weights import TensorWeights
from purerl.protocols import Completion, Generator, Request, Sampling
from purerl.testing.suite import shown

__all__ = ["DELAYS", "Case"]

DELAYS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Timeouts, in seconds, of `collect` between submitting requests and interrupting them.

Several values are tried: a generator that decodes in the background may not have started, or may have finished.
"""


@frozen
class Case:
    """A generator, and the arguments of `check_generator` that the checks need."""

    generator: Generator
    weights: Sequence[Mapping[str, Tensor]]
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]]
    vocabulary: int
    text: Callable[[Sequence[int]], str] | None
    logits: Callable[[Mapping[str, Tensor], Sequence[int]], Sequence[float]] | None
    tolerance: float
    samples: int
    long: int
    timeout: float

    @property
    def max_temperature(self) -> float:
        """The highest temperature that the generator accepts."""
        limit = self.generator.capabilities.max_temperature
        return math.inf if limit is None else limit

    def load(self, version: int) -> None:
        """Load a copy of ``weights[version % 2]`` as `version`: a generator must not keep the tensors, but some do."""
        copies = {name: weight.clone() for name, weight in self.weights[version % 2].items()}
        self.generator.load_weights(TensorWeights(copies), version=version)

    def request(self, number: int, **sampling: Any) -> Request:
        """A request whose prompt (1 to 12 tokens, as a list or a tuple) and seed depend only on `number`."""
        rng = random.Random(number)
        prompt = [rng.randrange(self.vocabulary) for _ in range(1 + number * 5 % 12)]
        sampling = {"max_tokens": 6, **sampling}
        return Request(f"request {number}", prompt if number % 2 else tuple(prompt), Sampling(**sampling), seed=number)

    def collect(self, timeout: float | None) -> list[Completion]:
        """The completions that the generator returns, in any kind of sequence, as a list of completions of tuples."""
        return [_checked(completion) for completion in self.generator.collect(timeout)]

    def start(self, requests: Sequence[Request], delay: float) -> dict[str, Completion]:
        """Submit `requests`, collect three times with the timeout `delay`, and return what has finished, by key."""
        self.generator.submit(requests)
        return {completion.key: completion for _ in range(3) for completion in self.collect(timeout=delay)}

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Submit `requests`, as a tuple, and return their completions in the same order."""
        self.generator.submit(tuple(requests))
        return self.wait([request.key for request in requests])

    def wait(self, keys: Sequence[str]) -> list[Completion]:
        """Collect one completion for each of `keys`; any other completion is an error."""
        done: dict[str, Completion] = {}
        start = time.monotonic()
        while missing := [key for key in keys if key not in done]:
            called = time.monotonic()
            assert called - start < self.timeout, (
                f"completions after {self.timeout} s: got none for {missing}, expected one each"
            )
            completions = self.collect(timeout=1.0)
            returned_early = not completions and time.monotonic() - called < 0.5
            assert not returned_early, (
                f"collect(timeout=1.0): got an empty list in less than 0.5 s, as if no request were in flight, "
                f"expected completions of {missing}"
            )
            for completion in completions:
                assert completion.key in keys, f"key of a completion: got {completion.key!r}, expected one of {keys}"
                assert completion.key not in done, f"completions of {completion.key!r}: got 2, expected 1"
                done[completion.key] = completion
        extra = self.collect(timeout=0.0)
        assert not extra, f"completions after the last request: got {[c.key for c in extra]}, expected none"
        return [done[key] for key in keys]

    def next_logp(self, tokens: Sequence[int], temperature: float) -> list[float]:
        """The log-probability of each token of the vocabulary after `tokens`: a forward pass of the first weights."""
        return [self.score(self.weights[0], [*tokens, token], temperature)[-1] for token in range(self.vocabulary)]

    def check_logp(self, request: Request, completion: Completion) -> None:
        """Compare each token's log-probability with a forward pass of the weights of the token's version."""
        tokens, prompt_length = [*request.tokens, *completion.tokens], len(request.tokens)
        temperature = request.sampling.temperature
        versions = set(completion.version)
        expected = {version: self.score(self.weights[version % 2], tokens, temperature) for version in versions}
        for index, (actual, version) in enumerate(zip(completion.logp, completion.version, strict=True)):
            wanted = expected[version][prompt_length + index]
            if not abs(actual - wanted) <= self.tolerance:
                others = {v for v in versions if abs(actual - expected[v][prompt_length + index]) <= self.tolerance}
                hint = f", which is that of version {others.pop()}" if others else ""
                raise AssertionError(
                    f"logp of new token {index} at temperature {temperature}, weights version {version}: "
                    f"got {shown(actual)}{hint}, expected {shown(wanted)} from a forward pass"
                )


def _checked(completion: Completion) -> Completion:
    """`completion` with tuples; raise AssertionError for one with an error."""
    assert isinstance(completion, Completion), f"collect: got {completion!r}, expected completions"
    assert completion.finish != "error", (
        f"request {completion.key!r}: got finish 'error' with {completion.error!r}, expected a completion"
    )
    values = {name: tuple(getattr(completion, name)) for name in ("tokens", "logp", "version")}
    return evolve(completion, **values)
