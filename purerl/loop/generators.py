"""Opening the generators of a run."""

from __future__ import annotations

from typing import Any

from purerl.plugins import find, kind_of
from purerl.protocols import Generator
from purerl.seeds import derive_seed
from purerl.settings import Model

__all__ = ["open_generator"]


def open_generator(settings: Any, model: Model, seed: int, name: str = "generator") -> Generator:
    """The engine that samples completions of `model`; `seed` is that of the run, and `name` the engine's."""
    seed = derive_seed(seed, name) % 2**31
    return find("generator", kind_of(settings)).build(settings, model=model, seed=seed)
