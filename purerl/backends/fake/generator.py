"""A generator for tests: samples from a table, and hands completions out a few at a time, in scrambled order."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence

import torch
from attrs import field, frozen
from torch import Tensor

from purerl.backends.fake.model import BIGRAM, initial_weights, text_of
from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.sampling import choose, signed, uniform
from purerl.backends.weights import copy_weights
from purerl.errors import ConfigError
from purerl.protocols import Completion, Finish, Model, Request

__all__ = ["Config", "FakeGenerator", "build"]


@frozen(kw_only=True)
class Config:
    """Settings of the fake generator."""

    vocabulary: int = field(default=16, metadata={"help": "tokens that there are"})
    longest: int = field(default=4096, metadata={"help": "tokens that a sequence may have"})
    at_once: int = field(default=4, metadata={"help": "completions that one call of collect gives at most"})

    def __attrs_post_init__(self) -> None:
        for name in ("vocabulary", "longest", "at_once"):
            if getattr(self, name) < 1:
                raise ConfigError(name, got=getattr(self, name), need="at least 1")


def build(config: Config, *, model: Model, seed: int) -> FakeGenerator:
    """A generator with the weights of `model`; `seed` orders completions, and has no part in what they are."""
    return FakeGenerator(config, initial_weights(model, config.vocabulary), seed)


class FakeGenerator:
    """A `Generator` that steps all its rows at once, a token each."""

    def __init__(self, config: Config, weights: dict[str, Tensor], seed: int) -> None:
        self._config, self._weights, self._version = config, weights, 0
        self.longest = config.longest
        self._order = random.Random(seed)
        self._rows: dict[str, PendingRequest] = {}
        self._done: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        in_use = {*self._rows, *(completion.key for completion in self._done)}
        check_requests(requests, in_use, vocabulary=self._config.vocabulary, longest=self.longest)
        self._rows.update((request.key, PendingRequest(request)) for request in requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._done and self._rows:
            self._step()
            if time.monotonic() >= deadline:
                break
        self._order.shuffle(self._done)
        given, self._done = self._done[: self._config.at_once], self._done[self._config.at_once :]
        return given

    def cancel(self, keys: Sequence[str]) -> None:
        self._done += [self._rows.pop(key).completion("cancelled") for key in keys if key in self._rows]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        copy_weights(weights, self._weights)
        self._version = version

    def close(self) -> None:
        self._rows, self._done = {}, []

    def _step(self) -> None:
        rows = list(self._rows.values())
        last = torch.tensor([(*row.request.tokens, *row.tokens)[-1] for row in rows])
        seed = torch.tensor([signed(row.request.seed) for row in rows])
        index = torch.tensor([len(row.tokens) for row in rows])
        temperature = torch.tensor([row.request.sampling.temperature for row in rows])
        token, logp = choose(self._weights[BIGRAM][last], temperature, uniform(seed, index))
        for row, one, its_logp in zip(rows, token.tolist(), logp.tolist(), strict=True):
            row.add([one], [its_logp], self._version)
            if finish := _finish(row):
                self._done.append(self._rows.pop(row.request.key).completion(finish))


def _finish(row: PendingRequest) -> Finish | None:
    sampling, text = row.request.sampling, text_of(row.tokens)
    if row.tokens[-1] in sampling.stop_tokens or any(stop in text for stop in sampling.stop_strings):
        return "stop"
    return None if row.left else "length"
