"""One thread, shape checks, and how many batches Hypothesis draws. This runs before a test module imports purerl."""

from __future__ import annotations

import os

# Read when purerl.types is imported. The hook then puts a type checker around every function of purerl.algos.
os.environ["PURERL_CHECK_SHAPES"] = "1"

import jaxtyping
import torch
from hypothesis import Phase, settings

jaxtyping.install_import_hook("purerl.algos", "shape_checks.checked")
torch.set_num_threads(1)

# No deadline: a batch takes milliseconds, but the first one of a process may take seconds. And no explanations of what
# failing batches have in common: that costs many runs, and the law has said what is wrong.
phases = set(Phase) - {Phase.explain}
settings.register_profile("quick", max_examples=2, deadline=None, phases=phases, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None, phases=phases)
settings.load_profile(os.environ.get("PURERL_PROFILE", "quick"))
