"""One thread, shape checks, and how many batches Hypothesis draws. This runs before a test module imports purerl."""

from __future__ import annotations

import os

# Read when purerl.types is imported. The hook then puts a type checker around every function of purerl.algos.
os.environ["PURERL_CHECK_SHAPES"] = "1"

import jaxtyping
import torch
from hypothesis import settings

jaxtyping.install_import_hook("purerl.algos", "shape_checks.checked")
torch.set_num_threads(1)

# A batch takes milliseconds, but the first one of a process may take seconds.
settings.register_profile("quick", max_examples=2, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=200, deadline=None)
settings.load_profile(os.environ.get("PURERL_PROFILE", "quick"))
