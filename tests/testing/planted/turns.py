"""Broken generators that, for a request that continues an earlier one, keep something wrong of its sequence."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from attrs import evolve
from torch import Tensor

from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.protocols import Request
from purerl.testing import generator as suite
from tests.testing.planted.errors import PlantedErrors

ERRORS = PlantedErrors()
planted = ERRORS.register


class Earlier(NamedTuple):
    """A request that was submitted, its state, and the weights at that time."""

    request: Request
    pending: PendingRequest
    weights: dict[str, Tensor]

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.request.tokens, *self.pending.tokens)


def submit_changed(original, self, requests, change):
    """Submit `change(request, earlier)` in place of a request that continues `earlier`, which has `keep`."""
    known = self.__dict__.setdefault("known", [])

    def changed(request):
        earlier = (e for e in known if e.pending.tokens and tuple(request.tokens[: len(e.tokens)]) == e.tokens)
        longest = max(earlier, key=lambda each: len(each.tokens), default=None)
        return change(request, longest) if longest else request

    original(self, [changed(request) for request in requests])
    weights = {name: weight.clone() for name, weight in self._weights.items()}
    known += [Earlier(request, self._pending[request.key], weights) for request in requests if request.keep]


@planted(suite.episode_turns.next_turns_equal_forward_pass, FakeGenerator, "submit")
def tokens_after_the_earlier_sequence_are_not_read(original, self, requests):
    submit_changed(original, self, requests, lambda request, earlier: evolve(request, tokens=earlier.tokens))


@planted(suite.episode_turns.next_turns_equal_requests_of_their_own, FakeGenerator, "submit")
def random_numbers_of_the_earlier_request_are_used(original, self, requests):
    """Each second time: a generator that keeps sequences forgets them when weights are loaded."""
    times = self.__dict__.setdefault("times", Counter())

    def change(request, earlier):
        times[request.key, tuple(request.tokens)] += 1
        is_first = times[request.key, tuple(request.tokens)] % 2
        return evolve(request, seed=earlier.request.seed) if is_first else request

    submit_changed(original, self, requests, change)


@planted(suite.episode_turns.sequence_can_be_continued_twice, FakeGenerator, "submit")
def second_request_continues_the_first(original, self, requests):
    first = self.__dict__.setdefault("first", {})

    def change(request, earlier):
        return evolve(request, tokens=first.setdefault(earlier.tokens, request.tokens))

    submit_changed(original, self, requests, change)


@planted(suite.episode_turns.next_turns_use_loaded_weights, FakeGenerator, "submit")
def weights_of_the_earlier_request_are_used(original, self, requests):
    def change(request, earlier):
        self._weights = earlier.weights
        return request

    submit_changed(original, self, requests, change)


@planted(suite.episode_turns.cancelled_sequence_can_be_continued, FakeGenerator, "submit")
def last_token_of_a_cancelled_request_is_not_read(original, self, requests):
    def change(request, earlier):
        is_whole = earlier.pending.remaining == 0 or len(request.tokens) > len(earlier.tokens)
        return request if is_whole else evolve(request, tokens=request.tokens[:-1])

    submit_changed(original, self, requests, change)
