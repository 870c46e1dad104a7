"""A generator for tests: samples from a table, and returns a few completions at a time in random order."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from purerl.backends.fake.model import BIGRAM, initial_weights, text_of
from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.sampling import choose, signed, uniform
from purerl.backends.weights import check_adapter, copy_weights
from purerl.errors import ConfigError
from purerl.protocols import Capabilities, Completion, FinishReason, Request, Weights
from purerl.settings import Model

__all__ = ["Config", "FakeGenerator", "build", "capabilities"]


@frozen(kw_only=True)
class Config:
    """Settings of the fake generator."""

    vocab_size: int = field(default=16, metadata={"help": "number of tokens"})
    max_sequence_length: int = field(default=4096, metadata={"help": "tokens of the longest sequence"})
    max_collected: int = field(default=4, metadata={"help": "completions per call of collect", "may_change": True})

    def __attrs_post_init__(self) -> None:
        for name in ("vocab_size", "max_sequence_length", "max_collected"):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), need="at least 1")


def capabilities() -> Capabilities:
    """What a generator can do. Its Config limits the length of sequences."""
    return Capabilities(batch_invariant=True, seeded=True, in_process=True)


def build(config: Config, *, model: Model, seed: int) -> FakeGenerator:
    """A generator with the weights of `model`; `seed` determines the order of completions, not their tokens."""
    return FakeGenerator(config, initial_weights(model, config.vocab_size), seed)


class FakeGenerator:
    """A `Generator` that samples one token per step for all requests."""

    def __init__(self, config: Config, weights: dict[str, Tensor], seed: int) -> None:
        self._config, self._weights, self._version = config, weights, 0
        self.capabilities = evolve(capabilities(), max_sequence_length=config.max_sequence_length)
        self._order = random.Random(seed)
        self._pending: dict[str, PendingRequest] = {}
        self._finished: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        in_use = {*self._pending, *(completion.key for completion in self._finished)}
        limit = self._config.max_sequence_length
        check_requests(requests, in_use, vocab_size=self._config.vocab_size, max_sequence_length=limit)
        self._pending.update((request.key, PendingRequest(request)) for request in requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._finished and self._pending:
            self._step()
            if time.monotonic() >= deadline:
                break
        self._order.shuffle(self._finished)
        count = self._config.max_collected
        collected, self._finished = self._finished[:count], self._finished[count:]
        return collected

    def cancel(self, keys: Sequence[str]) -> None:
        self._finished += [self._pending.pop(key).completion("cancelled") for key in keys if key in self._pending]

    def load_weights(self, weights: Weights, *, version: int) -> None:
        check_adapter(weights, self.capabilities)
        copy_weights(weights, self._weights)
        self._version = version

    def close(self) -> None:
        self._pending, self._finished = {}, []

    def _step(self) -> None:
        pending = list(self._pending.values())
        last = torch.tensor([(*each.request.tokens, *each.tokens)[-1] for each in pending])
        seed = torch.tensor([signed(each.request.seed) for each in pending])
        index = torch.tensor([len(each.tokens) for each in pending])
        temperature = torch.tensor([each.request.sampling.temperature for each in pending])
        tokens, logps = choose(self._weights[BIGRAM][last], temperature, uniform(seed, index))
        for each, token, logp in zip(pending, tokens.tolist(), logps.tolist(), strict=True):
            each.add([token], [logp], self._version)
            if reason := _finish_reason(each):
                self._finished.append(self._pending.pop(each.request.key).completion(reason))


def _finish_reason(pending: PendingRequest) -> FinishReason | None:
    sampling, text = pending.request.sampling, text_of(pending.tokens)
    if pending.tokens[-1] in sampling.stop_tokens or any(stop in text for stop in sampling.stop_strings):
        return "stop"
    return None if pending.remaining else "length"
