"""Reward functions that draw random numbers with numpy and torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch


def random_numpy_and_torch(completion: str, example: Mapping[str, Any]) -> dict[str, float]:
    return {"numpy": numpy.random.random(), "torch": torch.rand(()).item()}
