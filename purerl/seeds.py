"""Seeds: one for each random decision, derived from the run's seed and from what the decision is about.

No state of a random generator is carried from one step to the next. So checkpoints contain no such states, and the
number of processes does not change the result.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["derive_seed", "restored_generators", "seed_everything"]


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) for what `parts` name (run seed, draw, sample, ...): a hash, independent for other parts.

    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, and of numpy and torch if they have been imported.

    For code that is not ours, such as reward functions: called before each call, it makes the result independent of all
    calls before.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.2 ms, because it handles all devices


@contextmanager
def restored_generators() -> Iterator[None]:
    """After the block, the global generators have the states from before it: `seed_everything` may be called inside."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    states = random.getstate(), numpy and numpy.random.get_state(), torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        if numpy:
            numpy.random.set_state(states[1])
        if torch:
            torch.set_rng_state(states[2])
