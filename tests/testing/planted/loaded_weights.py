"""Planted errors of `load_weights` of generators, and of the versions of tokens."""

from __future__ import annotations

from attrs import evolve
from torch.nn.functional import pad

from purerl.backends.fake import engine as fake
from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.backends.weights import TensorWeights
from purerl.testing import generator as suite
from tests.testing.planted.errors import PlantedErrors

ERRORS = PlantedErrors()
planted = ERRORS.register


@planted(suite.weights.load_weights_replaces_weights, FakeGenerator, "load_weights")
def new_weights_are_ignored(original, self, weights, *, version):
    self._version = version


@planted(suite.weights.each_token_has_the_version_of_its_weights, FakeGenerator, "load_weights")
def version_is_not_updated(original, self, weights, *, version):
    original(self, weights, version=0)


@planted(suite.weights.load_weights_applies_to_requests_in_flight, PendingRequest, "completion")
def completion_has_one_version(original, self, finish):
    full = original(self, finish)
    return evolve(full, version=full.version[-1:] * len(full.version))


@planted(suite.weights.load_weights_applies_to_requests_in_flight, FakeGenerator, "load_weights")
def requests_in_flight_finish_with_the_old_weights(original, self, weights, *, version):
    while self._pending:
        self.step()
    original(self, weights, version=version)


@planted(suite.weights.unknown_weights_are_refused, FakeGenerator, "load_weights")
def unknown_weights_are_ignored(original, self, weights, *, version):
    known = {name: value for name, value in weights if name in self._weights}
    original(self, TensorWeights(known, weights.adapter), version=version)


@planted(suite.weights.unknown_weights_are_refused, FakeGenerator, "load_weights", "got KeyError: 'no.such.weight'")
def unknown_weights_raise_another_exception(original, self, weights, *, version):
    for name, value in weights:
        self._weights[name].copy_(value)
    self._version = version


@planted(suite.weights.weights_of_another_shape_are_refused, FakeGenerator, "load_weights")
def weights_of_another_shape_are_cut_and_padded(original, self, weights, *, version):
    def fitted(name, value):
        own = self._weights[name]
        return pad(value.flatten(), (0, own.numel() - value.numel())).reshape(own.shape)

    known = {name: fitted(name, value) if name in self._weights else value for name, value in weights}
    original(self, TensorWeights(known, weights.adapter), version=version)


@planted(suite.weights.weights_of_another_shape_are_refused, FakeGenerator, "load_weights")
def weights_of_another_shape_are_ignored(original, self, weights, *, version):
    fits = {n: v for n, v in weights if n not in self._weights or v.shape == self._weights[n].shape}
    original(self, TensorWeights(fits, weights.adapter), version=version)


@planted(suite.weights.weights_of_an_adapter_are_refused, fake, "check_adapter")
def adapters_are_loaded_as_weights(original, weights, capabilities):
    pass


@planted(suite.weights.loaded_weights_are_copied, FakeGenerator, "load_weights")
def references_to_loaded_weights_are_kept(original, self, weights, *, version):
    original(self, weights, version=version)
    self._weights = dict(weights)


@planted(suite.weights.each_token_has_the_version_of_its_weights, FakeGenerator, "load_weights")
def versions_are_one_too_high(original, self, weights, *, version):
    original(self, weights, version=version + 1)


@planted(suite.weights.each_token_has_the_version_of_its_weights, FakeGenerator, "load_weights")
def versions_are_one_too_low(original, self, weights, *, version):
    original(self, weights, version=version - 1)


@planted(suite.weights.each_token_has_the_version_of_its_weights, FakeGenerator, "load_weights")
def versions_are_counted_by_the_generator(original, self, weights, *, version):
    original(self, weights, version=self._version + 1)


IN_FLIGHT = suite.weights.load_weights_applies_to_requests_in_flight


@planted(IN_FLIGHT, PendingRequest, "completion", "which is that of version")
def last_token_of_the_old_weights_has_the_new_version(original, self, finish):
    """The versions are those of the next token."""
    full = original(self, finish)
    return evolve(full, version=(*full.version[1:], *full.version[-1:]))
