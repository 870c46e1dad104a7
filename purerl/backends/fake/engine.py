"""Sampling from a table: a few completions at a time are returned, in random order.

It can take some time for each token, and fail on a share of the requests.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import torch
from attrs import evolve
from torch import Tensor

from purerl.backends.fake.model import BIGRAM, text_of
from purerl.backends.fake.settings import GeneratorConfig
from purerl.backends.logits import FILTERS, Filters, filter_logits
from purerl.backends.requests import PendingRequest, check_requests
from purerl.backends.sampling import choose, signed, uniform
from purerl.backends.weights import check_adapter, copy_weights
from purerl.protocols import Capabilities, Completion, FinishReason, Request, Weights

__all__ = ["CAPABILITIES", "FakeGenerator"]

CAPABILITIES = Capabilities(batch_invariant=True, seeded=True, in_process=True, sampling=FILTERS)
"""By default. The settings limit the length of sequences."""


class FakeGenerator:
    """A `Generator` that samples one token per step for all requests."""

    def __init__(self, config: GeneratorConfig, weights: dict[str, Tensor], seed: int) -> None:
        self._config, self._weights, self._version = config, weights, 0
        self.capabilities = evolve(CAPABILITIES, max_sequence_length=config.max_sequence_length)
        self._order = random.Random(seed)
        self._pending: dict[str, PendingRequest] = {}
        self._finished: list[Completion] = []

    def submit(self, requests: Sequence[Request]) -> None:
        in_use = {*self._pending, *(completion.key for completion in self._finished)}
        check_requests(requests, in_use, self.capabilities, vocab_size=self._config.vocab_size)
        self._pending.update((request.key, PendingRequest(request)) for request in requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._finished and self._pending:
            self.step()
            if time.monotonic() >= deadline:
                break
        return self.take()

    def cancel(self, keys: Sequence[str]) -> None:
        self._finished += [self._pending.pop(key).completion("cancelled") for key in keys if key in self._pending]

    def load_weights(self, weights: Weights, *, version: int) -> None:
        check_adapter(weights, self.capabilities)
        copy_weights(weights, self._weights)
        self._version = version

    def close(self) -> None:
        self._pending, self._finished = {}, []

    @property
    def has_pending(self) -> bool:
        """Whether a request is decoded."""
        return bool(self._pending)

    @property
    def has_finished(self) -> bool:
        """Whether a completion can be taken."""
        return bool(self._finished)

    def take(self) -> list[Completion]:
        """The completions that `collect` returns now, without decoding."""
        self._order.shuffle(self._finished)
        count = self._config.max_collected
        collected, self._finished = self._finished[:count], self._finished[count:]
        return collected

    def step(self) -> None:
        """Sample a token for each request, after `seconds_per_token`."""
        time.sleep(self._config.seconds_per_token)
        self._fail()
        pending = list(self._pending.values())
        if not pending:
            return
        last = torch.tensor([(*each.request.tokens, *each.tokens)[-1] for each in pending])
        seed = torch.tensor([signed(each.request.seed) for each in pending])
        index = torch.tensor([len(each.tokens) for each in pending])
        temperature = torch.tensor([each.request.sampling.temperature for each in pending])
        filters = Filters.of(
            [each.request for each in pending], [each.tokens for each in pending], len(self._weights[BIGRAM])
        )
        logits = filter_logits(self._weights[BIGRAM][last], filters)
        tokens, logps = choose(logits, temperature, uniform(seed, index))
        for each, token, logp in zip(pending, tokens.tolist(), logps.tolist(), strict=True):
            each.add([token], [logp], self._version)
            if reason := _finish_reason(each):
                self._finished.append(self._pending.pop(each.request.key).completion(reason))

    def _fail(self) -> None:
        """Finish requests that have as many tokens as `error_rate` lets them have."""
        for key, pending in list(self._pending.items()) if self._config.error_rate else ():
            if len(pending.tokens) == _tokens_before_error(pending.request, self._config.error_rate):
                error = f"the fake generator fails on seed {pending.request.seed}"
                self._finished.append(evolve(self._pending.pop(key).completion("error"), error=error))


def _finish_reason(pending: PendingRequest) -> FinishReason | None:
    sampling, text = pending.request.sampling, text_of(pending.tokens)
    if pending.tokens[-1] in sampling.stop_tokens or any(stop in text for stop in sampling.stop_strings):
        return "stop"
    return None if pending.remaining else "length"


def _tokens_before_error(request: Request, error_rate: float) -> int | None:
    """The number of tokens after which `request` fails; None if it does not. It depends on the seed alone."""
    number = random.Random(f"error {request.seed}").random()
    return int(number / error_rate * request.sampling.max_tokens) if number < error_rate else None
