"""What a run changes of the process that it is in: torch's threads, and the generators of random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from purerl.config.schema import RunConfig

__all__ = ["borrowed", "random_states", "set_random_states"]


@contextmanager
def borrowed(config: RunConfig) -> Iterator[None]:
    """Threads as `config` says, and random numbers from its seed; after the block all is as it was before.

    What the loop itself draws has seeds of its own: these are for reward functions and engines.
    """
    threads, states = torch.get_num_threads(), random_states()
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    random.seed(config.seed)
    numpy.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    try:
        yield
    finally:
        if config.num_threads is not None:
            torch.set_num_threads(threads)
        set_random_states(states)


def random_states() -> tuple[Any, ...]:
    """The states of the generators of Python, numpy and torch."""
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def set_random_states(states: tuple[Any, ...]) -> None:
    """Go on from what `random_states` gave."""
    python, vectors, tensors = states
    random.setstate(python)
    numpy.random.set_state(vectors)
    torch.set_rng_state(tensors)
