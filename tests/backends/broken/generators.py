"""Broken generators: each is the fake generator with one function replaced. Most are bugs of real generators."""

from __future__ import annotations

import torch
from attrs import evolve

from purerl.backends.fake import engine as fake
from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.backends.sampling import choose
from purerl.protocols import Completion
from purerl.testing import generator as suite
from tests.backends.broken.mutants import Mutants

MUTANTS = Mutants()
mutant = MUTANTS.register


@mutant(suite.requests.collect_without_requests_returns_empty_list, FakeGenerator, "collect")
def completion_without_request(original, self, timeout=None):
    return original(self, timeout) or [Completion("warm-up", (), (), (), "length")]


@mutant(suite.requests.every_request_is_returned_once, FakeGenerator, "collect")
def completion_is_lost(original, self, timeout=None):
    return [completion for completion in original(self, timeout) if completion.key != "request 7"]


@mutant(suite.requests.every_request_is_returned_once, FakeGenerator, "collect")
def completion_is_returned_twice(original, self, timeout=None):
    return [copy for completion in original(self, timeout) for copy in (completion, completion)]


@mutant(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def keys_are_swapped(original, self, finish):
    return evolve(original(self, finish), key="request 0")


@mutant(suite.requests.every_request_is_returned_once, fake, "_finish_reason")
def one_token_too_many(original, pending):
    return "length" if pending.remaining < 0 else None


@mutant(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def one_logp_is_missing(original, self, finish):
    return evolve(original(self, finish), logp=self.logp[1:])


@mutant(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def finish_is_always_stop(original, self, finish):
    return original(self, "stop")


@mutant(suite.requests.polling_makes_progress, FakeGenerator, "collect")
def polling_does_not_decode(original, self, timeout=None):
    return [] if timeout == 0.0 else original(self, timeout)


@mutant(suite.requests.invalid_requests_are_refused, fake, "check_requests")
def no_request_is_refused(original, requests, in_use, capabilities, **limits):
    pass


@mutant(suite.requests.invalid_requests_are_refused, fake, "check_requests")
def keys_in_flight_are_accepted(original, requests, in_use, capabilities, **limits):
    original(requests, (), capabilities, **limits)


@mutant(suite.requests.invalid_requests_are_refused, FakeGenerator, "submit")
def requests_before_an_invalid_one_are_enqueued(original, self, requests):
    for request in requests:
        original(self, [request])


@mutant(suite.ending.stop_tokens_end_completion, fake, "_finish_reason")
def stop_tokens_are_ignored(original, pending):
    return None if pending.remaining else "length"


@mutant(suite.ending.stop_tokens_end_completion, fake, "_finish_reason")
def length_takes_precedence_over_stop(original, pending):
    return original(pending) if pending.remaining else "length"


@mutant(suite.ending.stop_tokens_end_completion, PendingRequest, "completion")
def stop_token_is_removed(original, self, finish):
    positions = slice(None, -1 if finish == "stop" else None)
    full = original(self, finish)
    return evolve(full, tokens=full.tokens[positions], logp=full.logp[positions], version=full.version[positions])


@mutant(suite.ending.stop_strings_end_completion, fake, "text_of")
def stop_strings_are_ignored(original, tokens):
    return ""


@mutant(suite.ending.stop_strings_end_completion, fake, "text_of")
def stop_strings_are_searched_in_the_last_token(original, tokens):
    return original(tokens[-1:])


@mutant(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_has_no_effect(original, self, keys):
    pass


@mutant(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_stops_all_requests(original, self, keys):
    original(self, [*keys, *self._pending])


@mutant(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_loses_tokens(original, self, keys):
    for key in self._pending.keys() & set(keys):
        self._pending[key] = PendingRequest(self._pending[key].request)
    original(self, keys)


@mutant(suite.ending.cancel_returns_generated_tokens, PendingRequest, "completion")
def cancel_returns_other_tokens(original, self, finish):
    full = original(self, finish)
    return evolve(full, tokens=[token + 1 for token in full.tokens]) if finish == "cancelled" else full


@mutant(suite.repetition.seed_determines_tokens, fake, "signed")
def seed_is_truncated_to_32_bits(original, number):
    return number % 2**32


@mutant(suite.repetition.seed_determines_tokens, fake, "uniform")
def seed_is_ignored(original, seed, index):
    return torch.rand(len(seed))


@mutant(suite.repetition.concurrent_requests_do_not_change_results, fake, "uniform")
def seed_is_the_row_index(original, seed, index):
    return original(torch.arange(len(seed)), index)


@mutant(suite.ending.canceled_completions_begin_whole_completions, fake, "uniform")
def random_numbers_depend_on_the_number_of_rows(original, seed, index):
    return original(seed + len(seed), index)


@mutant(suite.repetition.continued_completion_equals_single_completion, FakeGenerator, "submit")
def last_prompt_token_is_dropped(original, self, requests):
    original(self, [evolve(request, tokens=request.tokens[:-1] or request.tokens) for request in requests])


@mutant(suite.distribution.logp_equals_forward_pass, fake, "choose")
def logp_of_the_argmax(original, logits, temperature, uniform):
    token, _ = original(logits, temperature, uniform)
    return token, original(logits / temperature.clamp(min=0.1)[:, None], torch.zeros_like(temperature), uniform)[1]


@mutant(suite.distribution.logp_equals_forward_pass, fake, "choose")
def logp_before_temperature(original, logits, temperature, uniform):
    token, _ = original(logits, temperature, uniform)
    return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]


@mutant(suite.distribution.logp_equals_forward_pass, PendingRequest, "completion")
def logp_is_shifted(original, self, finish):
    full = original(self, finish)
    return evolve(full, logp=(*full.logp[1:], *full.logp[:1]))


@mutant(suite.distribution.sampled_tokens_match_probabilities, fake, "choose")
def tokens_are_sampled_at_temperature_1(original, logits, temperature, uniform):
    """Only the log-probabilities are those of the temperature of the request."""
    token, _ = original(logits, temperature.where(temperature == 0, 1), uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@mutant(suite.distribution.sampled_tokens_match_probabilities, fake, "uniform")
def random_numbers_have_four_bits(original, seed, index):
    return (original(seed, index) * 16).floor() / 16


@mutant(suite.distribution.sampled_tokens_match_probabilities, fake, "choose")
def unlikely_tokens_are_never_sampled(original, logits, temperature, uniform):
    """Sample from a truncated distribution, but return log-probabilities of the full one."""
    truncated = logits.where(logits.softmax(-1) > 0.1, -torch.inf)
    token, _ = original(truncated, temperature, uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@mutant(suite.distribution.sampled_pairs_match_probabilities, fake, "uniform")
def all_tokens_use_the_same_random_number(original, seed, index):
    return original(seed, torch.zeros_like(index))


@mutant(suite.distribution.sampled_pairs_match_probabilities, fake, "uniform")
def random_numbers_are_linear_in_seed_and_index(original, seed, index):
    return (seed * 0.37 + index * 0.61).float() % 1


@mutant(suite.distribution.greedy_decoding_returns_argmax, fake, "choose")
def greedy_decoding_samples(original, logits, temperature, uniform):
    return original(logits, temperature.where(temperature > 0, 1), uniform)


@mutant(suite.weights.load_weights_replaces_weights, FakeGenerator, "load_weights")
def new_weights_are_ignored(original, self, weights, *, version):
    self._version = version


@mutant(suite.weights.load_weights_replaces_weights, FakeGenerator, "load_weights")
def version_is_not_updated(original, self, weights, *, version):
    original(self, weights, version=0)


@mutant(suite.weights.load_weights_applies_to_requests_in_flight, PendingRequest, "completion")
def completion_has_one_version(original, self, finish):
    full = original(self, finish)
    return evolve(full, version=full.version[-1:] * len(full.version))


@mutant(suite.weights.load_weights_applies_to_requests_in_flight, FakeGenerator, "load_weights")
def requests_in_flight_finish_with_the_old_weights(original, self, weights, *, version):
    while self._pending:
        self.step()
    original(self, weights, version=version)


def rounded_by_batch(logits, temperature, uniform):
    """Another token for one request in a hundred if other requests are decoded with it."""
    shift = 0.01 if len(logits) > 1 else 0.0
    return choose(logits, temperature, uniform * (1 - shift))
