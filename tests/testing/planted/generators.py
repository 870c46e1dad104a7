"""Planted errors of generators: the fake generator with one function replaced. Most are bugs of real generators."""

from __future__ import annotations

import math

import torch
from attrs import evolve

from purerl.backends.fake import engine as fake
from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.backends.sampling import choose
from purerl.errors import EngineError
from purerl.protocols import Completion
from purerl.testing import generator as suite
from tests.testing.planted.errors import PlantedErrors

ERRORS = PlantedErrors()
planted = ERRORS.register


@planted(suite.requests.collect_without_requests_returns_empty_list, FakeGenerator, "collect")
def completion_without_request(original, self, timeout=None):
    return original(self, timeout) or [Completion("warm-up", (), (), (), "length")]


@planted(suite.requests.every_request_is_returned_once, FakeGenerator, "collect")
def completion_is_lost(original, self, timeout=None):
    return [completion for completion in original(self, timeout) if completion.key != "request 7"]


@planted(suite.requests.every_request_is_returned_once, FakeGenerator, "collect")
def completion_is_returned_twice(original, self, timeout=None):
    return [copy for completion in original(self, timeout) for copy in (completion, completion)]


@planted(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def keys_are_swapped(original, self, finish):
    return evolve(original(self, finish), key="request 0")


@planted(suite.requests.every_request_is_returned_once, fake, "_finish_reason")
def one_token_too_many(original, pending):
    return "length" if pending.remaining < 0 else None


@planted(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def one_logp_is_missing(original, self, finish):
    return evolve(original(self, finish), logp=self.logp[1:])


@planted(suite.requests.every_request_is_returned_once, PendingRequest, "completion")
def finish_is_always_stop(original, self, finish):
    return original(self, "stop")


@planted(suite.requests.polling_makes_progress, FakeGenerator, "collect")
def polling_does_not_decode(original, self, timeout=None):
    return [] if timeout == 0.0 else original(self, timeout)


@planted(suite.requests.invalid_requests_are_refused, fake, "check_requests")
def no_request_is_refused(original, requests, in_use, capabilities, **limits):
    pass


@planted(suite.requests.invalid_requests_are_refused, fake, "check_requests")
def keys_in_flight_are_accepted(original, requests, in_use, capabilities, **limits):
    original(requests, (), capabilities, **limits)


@planted(suite.requests.invalid_requests_are_refused, FakeGenerator, "submit")
def requests_before_an_invalid_one_are_enqueued(original, self, requests):
    for request in requests:
        original(self, [request])


@planted(suite.ending.stop_tokens_end_completion, fake, "_finish_reason")
def stop_tokens_are_ignored(original, pending):
    return None if pending.remaining else "length"


@planted(suite.ending.stop_tokens_end_completion, fake, "_finish_reason")
def length_takes_precedence_over_stop(original, pending):
    return original(pending) if pending.remaining else "length"


@planted(suite.ending.stop_tokens_end_completion, PendingRequest, "completion")
def stop_token_is_removed(original, self, finish):
    positions = slice(None, -1 if finish == "stop" else None)
    full = original(self, finish)
    return evolve(full, tokens=full.tokens[positions], logp=full.logp[positions], version=full.version[positions])


@planted(suite.ending.stop_strings_end_completion, fake, "text_of")
def stop_strings_are_ignored(original, tokens):
    return ""


@planted(suite.ending.stop_strings_end_completion, fake, "text_of")
def stop_strings_are_searched_in_the_last_token(original, tokens):
    return original(tokens[-1:])


@planted(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_has_no_effect(original, self, keys):
    pass


@planted(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_stops_all_requests(original, self, keys):
    original(self, [*keys, *self._pending])


@planted(suite.ending.cancel_returns_generated_tokens, FakeGenerator, "cancel")
def cancel_loses_tokens(original, self, keys):
    for key in self._pending.keys() & set(keys):
        self._pending[key] = PendingRequest(self._pending[key].request)
    original(self, keys)


@planted(suite.ending.cancel_returns_generated_tokens, PendingRequest, "completion")
def cancel_returns_other_tokens(original, self, finish):
    full = original(self, finish)
    return evolve(full, tokens=[token + 1 for token in full.tokens]) if finish == "cancelled" else full


@planted(suite.repetition.seed_determines_tokens, fake, "signed")
def seed_is_truncated_to_32_bits(original, number):
    return number % 2**32


@planted(suite.repetition.seed_determines_tokens, fake, "uniform")
def seed_is_ignored(original, seed, index):
    return torch.rand(len(seed))


@planted(suite.randomness.each_request_has_random_numbers_of_its_own, fake, "uniform")
def seed_is_the_row_index(original, seed, index):
    return original(torch.arange(len(seed)), index)


@planted(suite.repetition.concurrent_requests_do_not_change_results, fake, "uniform")
def row_index_is_added_to_the_seed(original, seed, index):
    return original(seed + torch.arange(len(seed)), index)


@planted(suite.repetition.concurrent_requests_do_not_change_results, fake, "uniform")
def random_numbers_depend_on_the_number_of_rows(original, seed, index):
    return original(seed + len(seed), index)


@planted(suite.ending.canceled_completions_begin_whole_completions, FakeGenerator, "cancel")
def canceled_requests_are_sampled_again(original, self, keys):
    """They return as many tokens as they had, sampled with another seed."""
    in_flight = dict(self._pending)
    others = {key: pending for key, pending in in_flight.items() if key not in keys}
    again = {}
    for key in in_flight.keys() - others.keys():
        request = in_flight[key].request
        again[key] = PendingRequest(evolve(request, seed=request.seed + 1))
        self._pending = {key: again[key]}
        for _ in in_flight[key].tokens:
            self.step()
    self._pending = others | again
    original(self, keys)


@planted(suite.repetition.continued_completion_equals_single_completion, FakeGenerator, "submit")
def long_prompts_are_truncated(original, self, requests):
    """Those of more than 12 tokens lose the last ones."""
    original(self, [evolve(request, tokens=request.tokens[:12]) for request in requests])


@planted(suite.distribution.logp_equals_forward_pass, fake, "choose")
def logp_of_the_argmax(original, logits, temperature, uniform):
    token, _ = original(logits, temperature, uniform)
    return token, original(logits / temperature.clamp(min=0.1)[:, None], torch.zeros_like(temperature), uniform)[1]


@planted(suite.distribution.logp_equals_forward_pass, fake, "choose")
def logp_before_temperature(original, logits, temperature, uniform):
    token, _ = original(logits, temperature, uniform)
    return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]


@planted(suite.distribution.logp_equals_forward_pass, PendingRequest, "completion")
def logp_is_shifted(original, self, finish):
    full = original(self, finish)
    return evolve(full, logp=(*full.logp[1:], *full.logp[:1]))


@planted(suite.distribution.sampled_tokens_match_probabilities, fake, "choose")
def tokens_are_sampled_at_temperature_1(original, logits, temperature, uniform):
    """Only the log-probabilities are those of the temperature of the request."""
    token, _ = original(logits, temperature.where(temperature == 0, 1), uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@planted(suite.distribution.sampled_tokens_match_probabilities, fake, "uniform")
def random_numbers_have_four_bits(original, seed, index):
    return (original(seed, index) * 16).floor() / 16


@planted(suite.distribution.every_token_can_be_sampled, fake, "choose")
def unlikely_tokens_are_never_sampled(original, logits, temperature, uniform):
    """Sample from a truncated distribution, but return log-probabilities of the full one."""
    truncated = logits.where(logits.softmax(-1) > 0.02, -torch.inf)
    token, _ = original(truncated, temperature, uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@planted(suite.randomness.each_token_has_a_random_number_of_its_own, fake, "uniform")
def all_tokens_use_the_same_random_number(original, seed, index):
    return original(seed, torch.zeros_like(index))


@planted(suite.randomness.each_token_has_a_random_number_of_its_own, fake, "uniform")
def random_numbers_of_a_request_differ_by_a_constant(original, seed, index):
    return (original(seed, torch.zeros_like(index)) + 0.61 * index.float()) % 1


@planted(suite.distribution.greedy_decoding_returns_argmax, fake, "choose")
def greedy_decoding_samples(original, logits, temperature, uniform):
    return original(logits, temperature.where(temperature > 0, 1), uniform)


# --- random numbers and filters ------------------------------------------------------------------------------------


@planted(suite.randomness.each_request_has_random_numbers_of_its_own, fake, "uniform")
def all_requests_use_the_same_random_number(original, seed, index):
    return original(torch.zeros_like(seed), index)


@planted(suite.randomness.each_request_has_random_numbers_of_its_own, fake, "uniform")
def random_numbers_depend_on_the_position_in_a_block(original, seed, index):
    """The rows of a batch share 16 random numbers."""
    return original(seed[torch.arange(len(seed)) % 16], index)


@planted(suite.randomness.each_request_has_random_numbers_of_its_own, fake, "choose")
def decoding_is_always_greedy(original, logits, temperature, uniform):
    token = logits.argmax(-1)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


def keep_most_likely(logits, count):
    """`logits` with -inf outside of the `count` largest ones of each row."""
    return logits.where(logits >= logits.topk(count).values[:, -1:], -torch.inf)


@planted(suite.distribution.every_token_can_be_sampled, fake, "filter_logits", "top_k, top_p or min_p")
def default_top_k(original, logits, filters):
    """Ten tokens are kept; log-probabilities are those of the tokens that are kept."""
    return keep_most_likely(original(logits, filters), 10)


@planted(suite.distribution.every_token_can_be_sampled, fake, "choose", "top_k, top_p or min_p")
def default_top_k_that_log_probabilities_do_not_show(original, logits, temperature, uniform):
    token, _ = original(keep_most_likely(logits, logits.shape[-1] - 3), temperature, uniform)
    scale = temperature.where(temperature > 0, 1)[:, None]
    return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]


@planted(suite.distribution.every_token_can_be_sampled, fake, "filter_logits", "top_k, top_p or min_p")
def default_top_p(original, logits, filters):
    return original(logits, filters._replace(top_p=filters.top_p.clamp(max=0.9)))


def sample_at(factor):
    """A function in place of `choose` that samples at `factor` times the temperature."""

    def choose_at(original, logits, temperature, uniform):
        token, _ = original(logits, temperature * factor, uniform)
        scale = temperature.where(temperature > 0, 1)[:, None]
        return token, (logits / scale).log_softmax(-1).gather(-1, token[:, None])[:, 0]

    return choose_at


@planted(suite.distribution.tokens_are_sampled_at_the_temperature, fake, "choose", "got about ")
def temperature_is_5_percent_too_high(original, *arguments):
    return sample_at(1.05)(original, *arguments)


@planted(suite.distribution.tokens_are_sampled_at_the_temperature, fake, "choose", "got about ")
def temperature_is_5_percent_too_low(original, *arguments):
    return sample_at(0.95)(original, *arguments)


@planted(suite.distribution.logp_equals_forward_pass, fake, "choose")
def temperature_and_its_log_probabilities_are_5_percent_too_high(original, logits, temperature, uniform):
    return original(logits, temperature * 1.05, uniform)


@planted(suite.distribution.logp_equals_forward_pass, fake, "choose")
def logp_is_in_bits(original, logits, temperature, uniform):
    token, logp = original(logits, temperature, uniform)
    return token, logp / math.log(2)


@planted(suite.distribution.logp_equals_forward_pass, FakeGenerator, "submit")
def last_prompt_token_is_dropped(original, self, requests):
    original(self, [evolve(request, tokens=request.tokens[:-1] or request.tokens) for request in requests])


# --- exceptions, and what is not a number --------------------------------------------------------------------------


@planted(suite.requests.log_probabilities_are_finite, PendingRequest, "completion", "NaN, which is not a number")
def a_log_probability_is_not_a_number(original, self, finish):
    full = original(self, finish)
    return evolve(full, logp=(*full.logp[:-1], math.nan)) if len(full.tokens) > 4 else full


@planted(suite.requests.log_probabilities_are_finite, fake, "choose", "the model's logits are not finite")
def logits_are_not_a_number_in_large_batches(original, logits, temperature, uniform):
    return original(logits * (math.nan if len(logits) > 8 and temperature.max() > 1 else 1), temperature, uniform)


@planted(suite.requests.every_request_is_returned_once, fake, "choose", "got RuntimeError: out of memory")
def large_batches_raise_an_exception(original, logits, temperature, uniform):
    if len(logits) > 30:
        raise RuntimeError("out of memory")
    return original(logits, temperature, uniform)


@planted(suite.ending.stop_tokens_end_completion, fake, "_finish_reason", "got EngineError: a stop token")
def stop_tokens_raise_an_exception(original, pending):
    if pending.tokens[-1] in pending.request.sampling.stop_tokens:
        raise EngineError("a stop token", got=pending.tokens[-1], need="none", do="set generator.ignore_eos")
    return original(pending)


def rounded_by_batch(logits, temperature, uniform):
    """Another token for one request in a hundred if other requests are decoded with it."""
    shift = 0.01 if len(logits) > 1 else 0.0
    return choose(logits, temperature, uniform * (1 - shift))
