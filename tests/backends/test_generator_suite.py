"""The fake generator passes the published suite, and each check catches the bugs that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import evolve

from purerl.backends.fake import generator as fake
from purerl.backends.fake.generator import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.protocols import Completion
from purerl.testing import generator as published
from purerl.testing.generator import check_generator
from tests.backends.generators import FAKE, fake_generator


def test_the_fake_conforms():
    check_generator(fake_generator, **FAKE)


# --- mutants -----------------------------------------------------------------------------------------------------
# Each is a bug that a generator has had somewhere. `mutant(check, owner, name)` replaces `owner.name` by a function
# that gets the true one first; `check` sees it without any other's help.

MUTANTS: dict[str, tuple[Callable, object, str, Callable]] = {}


def mutant(check: Callable, owner: object, name: str):
    def register(function: Callable) -> Callable:
        MUTANTS[function.__name__] = (check, owner, name, function)
        return function

    return register


@mutant(published.nothing_in_flight_is_an_empty_answer, FakeGenerator, "collect")
def a_completion_of_nobody_s_is_left_over(true, self, timeout=None):
    return true(self, timeout) or [Completion("warm-up", (), (), (), "length")]


@mutant(published.every_request_comes_back_once, FakeGenerator, "collect")
def a_completion_is_lost(true, self, timeout=None):
    return [completion for completion in true(self, timeout) if completion.key != "request 7"]


@mutant(published.every_request_comes_back_once, FakeGenerator, "collect")
def a_completion_comes_twice(true, self, timeout=None):
    return [again for completion in true(self, timeout) for again in (completion, completion)]


@mutant(published.every_request_comes_back_once, PendingRequest, "completion")
def keys_are_swapped(true, self, finish):
    return evolve(true(self, finish), key="request 0")


@mutant(published.every_request_comes_back_once, fake, "_finish")
def one_token_too_many(true, row):
    return "length" if row.left < 0 else None


@mutant(published.every_request_comes_back_once, PendingRequest, "completion")
def one_logp_is_missing(true, self, finish):
    return evolve(true(self, finish), logp=self.logp[1:])


@mutant(published.every_request_comes_back_once, PendingRequest, "completion")
def finish_is_always_stop(true, self, finish):
    return true(self, "stop")


@mutant(published.polling_makes_progress, FakeGenerator, "collect")
def a_poll_does_not_decode(true, self, timeout=None):
    return [] if timeout == 0.0 else true(self, timeout)


@mutant(published.impossible_requests_are_refused, fake, "check_requests")
def nothing_is_refused(true, requests, in_use, **limits):
    pass


@mutant(published.impossible_requests_are_refused, fake, "check_requests")
def keys_in_flight_are_accepted(true, requests, in_use, **limits):
    true(requests, (), **limits)


@mutant(published.impossible_requests_are_refused, FakeGenerator, "submit")
def what_comes_before_a_bad_request_is_enqueued(true, self, requests):
    for request in requests:
        true(self, [request])


@mutant(published.stop_tokens_end_a_completion, fake, "_finish")
def stop_tokens_are_ignored(true, row):
    return None if row.left else "length"


@mutant(published.stop_tokens_end_a_completion, fake, "_finish")
def length_wins_over_stop(true, row):
    return true(row) if row.left else "length"


@mutant(published.stop_tokens_end_a_completion, PendingRequest, "completion")
def the_stop_token_is_cut_off(true, self, finish):
    cut = slice(None, -1 if finish == "stop" else None)
    whole = true(self, finish)
    return evolve(whole, tokens=whole.tokens[cut], logp=whole.logp[cut], version=whole.version[cut])


@mutant(published.stop_texts_end_a_completion, fake, "text_of")
def stop_texts_are_ignored(true, tokens):
    return ""


@mutant(published.stop_texts_end_a_completion, fake, "text_of")
def stop_texts_are_sought_in_the_last_token(true, tokens):
    return true(tokens[-1:])


@mutant(published.cancelled_requests_return_their_tokens, FakeGenerator, "cancel")
def cancel_does_nothing(true, self, keys):
    pass


@mutant(published.cancelled_requests_return_their_tokens, FakeGenerator, "cancel")
def cancel_stops_everything(true, self, keys):
    true(self, [*keys, *self._rows])


@mutant(published.cancelled_requests_return_their_tokens, FakeGenerator, "cancel")
def cancel_loses_tokens(true, self, keys):
    for key in self._rows.keys() & set(keys):
        self._rows[key] = PendingRequest(self._rows[key].request)
    true(self, keys)


@mutant(published.the_seed_decides, fake, "signed")
def the_seed_is_cut_to_32_bits(true, number):
    return number % 2**32


@mutant(published.the_seed_decides, fake, "uniform")
def the_seed_is_ignored(true, seed, index):
    return torch.rand(len(seed))


@mutant(published.neighbors_do_not_matter, fake, "uniform")
def the_seed_is_the_batch_s(true, seed, index):
    return true(torch.arange(len(seed)), index)


@mutant(published.a_completion_can_be_continued, FakeGenerator, "submit")
def the_prompt_s_last_token_is_forgotten(true, self, requests):
    true(self, [evolve(request, tokens=request.tokens[:-1] or request.tokens) for request in requests])


@mutant(published.logp_is_that_of_a_forward_pass, fake, "choose")
def logp_is_the_likeliest_token_s(true, logits, temperature, uniform):
    token, _ = true(logits, temperature, uniform)
    return token, true(logits / temperature.clamp(min=0.1)[:, None], torch.zeros_like(temperature), uniform)[1]


@mutant(published.logp_is_that_of_a_forward_pass, fake, "choose")
def logp_is_taken_before_temperature(true, logits, temperature, uniform):
    token, _ = true(logits, temperature, uniform)
    return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]


@mutant(published.logp_is_that_of_a_forward_pass, PendingRequest, "completion")
def logp_is_shifted(true, self, finish):
    whole = true(self, finish)
    return evolve(whole, logp=(*whole.logp[1:], *whole.logp[:1]))


@mutant(published.pairs_have_their_probability, fake, "choose")
def the_unlikeliest_token_is_never_drawn(true, logits, temperature, uniform):
    """A truncated support, and log-probabilities of the whole one: the ratio is biased."""
    cut = logits.where(logits.softmax(-1) > 0.1, -torch.inf)
    token, _ = true(cut, temperature, uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@mutant(published.pairs_have_their_probability, fake, "uniform")
def every_token_is_drawn_by_the_same_number(true, seed, index):
    return true(seed, torch.zeros_like(index))


@mutant(published.pairs_have_their_probability, fake, "uniform")
def the_stream_of_a_seed_is_its_neighbor_s(true, seed, index):
    return (seed * 0.37 + index * 0.61).float() % 1


@mutant(published.greedy_takes_the_likeliest, fake, "choose")
def greedy_samples(true, logits, temperature, uniform):
    return true(logits, temperature.where(temperature > 0, 1), uniform)


@mutant(published.weights_are_replaced, FakeGenerator, "load_weights")
def weights_are_ignored(true, self, weights, *, version):
    self._version = version


@mutant(published.weights_are_replaced, FakeGenerator, "load_weights")
def the_version_is_not_updated(true, self, weights, *, version):
    true(self, weights, version=0)


@mutant(published.weights_are_replaced_in_flight, PendingRequest, "completion")
def a_completion_has_one_version(true, self, finish):
    whole = true(self, finish)
    return evolve(whole, version=whole.version[-1:] * len(whole.version))


@mutant(published.weights_are_replaced_in_flight, FakeGenerator, "load_weights")
def what_is_in_flight_ends_under_the_old_weights(true, self, weights, *, version):
    while self._rows:
        self._step()
    true(self, weights, version=version)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    check, owner, attribute, function = MUTANTS[name]
    true = getattr(owner, attribute)
    monkeypatch.setattr(owner, attribute, lambda *args, **kwargs: function(true, *args, **kwargs))
    monkeypatch.setattr(published, "CHECKS", [check])
    monkeypatch.setattr(published, "_PATIENCE", 0.2)
    with pytest.raises(AssertionError, match=f"^{check.__name__}: "):
        check_generator(fake_generator, **FAKE)


def test_every_check_has_a_mutant():
    caught = {check for check, *_ in MUTANTS.values()}
    assert caught == set(published.CHECKS)
