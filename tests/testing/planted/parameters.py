"""Broken implementations of the parameters in `Capabilities.sampling`."""

from __future__ import annotations

import torch
from attrs import evolve

from purerl.backends.fake import engine as fake
from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.protocols import SAMPLING_PARAMETERS
from purerl.testing import generator as suite
from tests.testing.planted.errors import PlantedErrors

ERRORS = PlantedErrors()
planted = ERRORS.register


@planted(suite.requests.invalid_requests_are_refused, fake, "check_requests")
def parameters_that_the_generator_lacks_are_ignored(original, requests, in_use, capabilities, **limits):
    original(requests, in_use, evolve(capabilities, sampling=SAMPLING_PARAMETERS), **limits)


@planted(suite.parameters.sampling_parameters_change_probabilities, fake, "filter_logits")
def top_p_top_k_and_min_p_are_ignored(original, logits, filters):
    whole = torch.full_like(filters.top_k, logits.shape[-1])
    ones, zeros = torch.ones_like(filters.top_p), torch.zeros_like(filters.min_p)
    return original(logits, filters._replace(top_p=ones, top_k=whole, min_p=zeros))


@planted(suite.parameters.sampling_parameters_change_probabilities, fake, "filter_logits")
def temperature_is_applied_after_the_filters(original, logits, filters):
    """Only the greedy rows keep their temperature."""
    return original(logits, filters._replace(temperature=filters.temperature.clamp(max=1).ceil()))


@planted(suite.parameters.sampling_parameters_change_probabilities, fake, "filter_logits")
def top_p_and_top_k_are_independent(original, logits, filters):
    """The nucleus is that of the whole distribution, as in engines that apply both filters jointly."""
    without_top_p = original(logits, filters._replace(top_p=torch.ones_like(filters.top_p)))
    whole = filters._replace(top_k=torch.full_like(filters.top_k, logits.shape[-1]))
    return torch.minimum(without_top_p, original(logits, whole))


@planted(suite.parameters.sampling_parameters_change_probabilities, fake, "filter_logits")
def penalty_leaves_out_the_prompt(original, logits, filters):
    return original(logits, filters._replace(seen=torch.zeros_like(filters.seen)))


@planted(suite.parameters.sampling_parameters_change_probabilities, fake, "filter_logits")
def penalty_divides_negative_logits(original, logits, filters):
    rate = filters.repetition_penalty[:, None]
    penalized = torch.where(filters.seen, logits / rate, logits)
    return original(penalized, filters._replace(seen=torch.zeros_like(filters.seen)))


@planted(suite.parameters.sampling_parameters_change_probabilities, PendingRequest, "completion")
def logp_is_not_renormalized(original, self, finish):
    """The log-probability under the whole distribution, of which a tenth was dropped."""
    full, sampling = original(self, finish), self.request.sampling
    return evolve(full, logp=[each - 0.1 for each in full.logp]) if sampling.min_p else full


@planted(suite.distribution.logp_equals_forward_pass, fake, "filter_logits")
def greedy_decoding_is_renormalized(original, logits, filters):
    result = original(logits, filters)
    return result.where((result >= result.amax(-1, keepdim=True)) | (filters.temperature > 0)[:, None], -torch.inf)


@planted(suite.parameters.top_k_of_one_is_greedy_decoding, fake, "filter_logits")
def top_k_of_one_keeps_two_tokens(original, logits, filters):
    return original(logits, filters._replace(top_k=filters.top_k.clamp(min=2)))


@planted(suite.parameters.min_tokens_delays_the_end, fake, "filter_logits")
def min_tokens_is_one_too_small(original, logits, filters):
    return original(logits, filters._replace(min_tokens=filters.min_tokens - 1))


@planted(suite.parameters.min_tokens_delays_the_end, FakeGenerator, "__init__")
def min_tokens_ignores_stop_strings(original, self, *arguments):
    original(self, *arguments)
    states(self, "min_tokens with stop_strings")


@planted(suite.parameters.completion_matches_regex, FakeGenerator, "__init__")
def regex_is_ignored(original, self, *arguments):
    original(self, *arguments)
    states(self, "regex")


def states(generator, name):
    capabilities = generator.capabilities
    generator.capabilities = evolve(capabilities, sampling=capabilities.sampling | {name})
