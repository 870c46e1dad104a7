"""A generator whose completions depend on their requests alone, and finish in an order that a test chooses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence

from attrs import evolve

from purerl.backends.requests import check_requests
from purerl.protocols import Capabilities, Completion, Request, Weights

__all__ = ["Respond", "ScriptedGenerator", "random_tokens"]

Respond = Callable[[Request, random.Random], Sequence[int]]
"""The tokens that the model samples for a request. Random numbers come from the generator that is passed."""

_MAX_TOKENS = 8
_FIRST_VERSION = 3


def random_tokens(vocabulary: int) -> Respond:
    """Up to eight random tokens, then a stop token if there is one and the limit permits it."""

    def respond(request: Request, rng: random.Random) -> list[int]:
        tokens = [rng.randrange(vocabulary) for _ in range(rng.randint(1, _MAX_TOKENS))]
        return [*tokens, *request.sampling.stop_tokens[:1]]

    return respond


class ScriptedGenerator:
    """A `Generator` that decodes in `collect`, and finishes requests in the order of submission, or at random.

    failing       keys of the requests that fail
    limit         number of requests that finish; None: all. The others wait
    held          key of a request that waits
    requests      all requests, in order
    keys          their keys
    num_first     number of requests that were submitted together first
    completions   by key
    pending       requests in flight, by key
    cancelled     keys of the requests that were cancelled before they were finished
    """

    def __init__(self, respond: Respond, vocabulary: int, *, order: int | None = None, failing: Collection[str] = ()):
        self.capabilities = Capabilities(batch_invariant=True, seeded=True, in_process=True)
        self._respond, self._vocabulary, self._failing = respond, vocabulary, failing
        self._order = None if order is None else random.Random(order)
        self.limit: int | None = None
        self.held: str | None = None
        self.keys: set[str] = set()
        self.requests: list[Request] = []
        self.num_first = 0
        self.completions: dict[str, Completion] = {}
        self.pending: dict[str, Request] = {}
        self.cancelled: list[str] = []
        self._finished: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        check_requests(requests, self.pending, self.capabilities, vocab_size=self._vocabulary)
        self.num_first = self.num_first or len(requests)
        self.requests += requests
        self.keys.update(request.key for request in requests)
        self.pending.update((request.key, request) for request in requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        keys = [key for key in self.pending if key != self.held]
        if self.limit is not None:
            keys = keys[: max(0, self.limit - len(self.completions))]
        if keys and not self._finished:
            key = keys[0] if self._order is None else self._order.choice(keys)
            self.completions[key] = self._completion(self.pending.pop(key))
            self._finished.append(self.completions[key])
        if not self._finished and self.pending:
            time.sleep(timeout or 0.0)
        finished, self._finished = self._finished, []
        return finished

    def cancel(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.pending:
                self.cancelled.append(key)
                self._finished.append(evolve(self._completion(self.pending.pop(key)), finish="cancelled"))

    def load_weights(self, weights: Weights, *, version: int) -> None: ...

    def close(self) -> None:
        self.pending, self._finished = {}, []

    def _completion(self, request: Request) -> Completion:
        sampling = request.sampling
        seed = request.seed if sampling.temperature else "greedy"
        rng = random.Random(f"{list(request.tokens)} {sampling.temperature} {seed}")
        tokens = [int(token) for token in self._respond(request, rng)][: sampling.max_tokens]
        end = next((k for k, token in enumerate(tokens) if token in sampling.stop_tokens), len(tokens))
        tokens = tokens[: end + 1]
        # Numbers that float32 can hold, and that are different for each token.
        logp = [-(1 + rng.randrange(2**20)) / 2**18 for _ in tokens]
        version = [_FIRST_VERSION + k // 2 for k in range(len(tokens))]
        finish = "stop" if len(tokens) < sampling.max_tokens or tokens[-1] in sampling.stop_tokens else "length"
        completion = Completion(request.key, tokens, logp, version, finish)
        return _failed(completion) if request.key in self._failing else completion


def _failed(completion: Completion) -> Completion:
    half = len(completion.tokens) // 2
    parts = {name: getattr(completion, name)[:half] for name in ("tokens", "logp", "version")}
    return evolve(completion, **parts, finish="error", error="check_rollouts lets this request fail")
