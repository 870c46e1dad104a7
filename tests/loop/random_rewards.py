"""Reward functions with random numbers. The libraries are imported at the top, so worker processes can seed them."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch


def drawn(completion: str, example: Any) -> float:
    """The sum of random numbers from the global generators of Python, numpy and torch."""
    return random.random() + numpy.random.random() + float(torch.rand(()))
