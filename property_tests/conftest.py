"""Configure shape checks, the number of threads and Hypothesis, before a test module imports purerl."""

from __future__ import annotations

import gc
import os

# purerl.types reads this variable on import. The import hook then adds a type checker to each function of purerl.algos.
os.environ["PURERL_CHECK_SHAPES"] = "1"

import jaxtyping
import torch
from hypothesis import Phase, settings

jaxtyping.install_import_hook("purerl.algos", "shape_checks.check_shapes")
torch.set_num_threads(1)

# No deadline: a batch takes milliseconds, but the first batch of a process may take seconds. No `explain` phase: it
# needs many runs, and the message of a law already explains the failure.
phases = set(Phase) - {Phase.explain}
settings.register_profile("quick", max_examples=2, deadline=None, phases=phases, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None, phases=phases)
settings.load_profile(os.environ.get("PURERL_PROFILE", "quick"))


def pytest_collection_finish() -> None:
    """Let collections ignore what exists now: the libraries have a million objects."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free everything when it ends, or libraries complain about leaks."""
    gc.unfreeze()
