"""A generator for tests, which samples from a table, in `collect` or in a thread of its own."""

from __future__ import annotations

from attrs import evolve

from purerl.backends.fake.background import BackgroundGenerator
from purerl.backends.fake.engine import CAPABILITIES, FakeGenerator
from purerl.backends.fake.model import initial_weights
from purerl.backends.fake.settings import GeneratorConfig as Config
from purerl.protocols import Capabilities, Generator
from purerl.settings import Model

__all__ = ["Config", "build", "capabilities", "preview"]


def capabilities() -> Capabilities:
    """The capabilities of a generator by default. Its Config limits the length of sequences; see also `preview`."""
    return CAPABILITIES


def preview(config: Config, *, model: Model) -> Capabilities:
    """The capabilities of a generator with these settings."""
    return evolve(capabilities(), max_sequence_length=config.max_sequence_length, in_process=config.in_process)


def build(config: Config, *, model: Model, seed: int) -> Generator:
    """A generator with the weights of `model`; `seed` determines the order of completions, not their tokens."""
    weights = initial_weights(model, config.vocab_size)
    if config.in_process:
        return FakeGenerator(config, weights, seed)
    generator = FakeGenerator(evolve(config, seconds_per_token=0.0), weights, seed)
    return BackgroundGenerator(generator, preview(config, model=model), config.seconds_per_token)
