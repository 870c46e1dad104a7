"""The arguments of `purerl.testing.check_trainer` for the HF trainer, on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from purerl.ranks import current_ranks
from tests.backends.tiny import VOCAB_SIZE, make_trainer, write_model

# An eps that is not small compared to the gradient, so that AdamW depends on the scale of the gradient.
ADAMW = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-2, "weight_decay": 0.0}
WHOLE, SMALL = 1000, 12  # tokens of a micro-batch

VARIANTS: tuple[Mapping[str, Any], ...] = (
    {"budget": SMALL, "recompute": "layers"},
    {"budget": SMALL, "packing": True},
)
"""Small micro-batches with recomputation, and with packed rows."""
PACKED: tuple[Mapping[str, Any], ...] = ({"budget": SMALL, "recompute": "layers", "packing": True},)
"""For meshes that take long; `tests.backends.parallel_table` has each with small micro-batches and shared prefixes."""


def conformance(
    directory: Path,
    family: str = "qwen3",
    tolerance: float = 1e-7,
    settings: Mapping[str, Any] = MappingProxyType({}),
    variants: Iterable[Mapping[str, Any]] = VARIANTS,
    **changes: Any,
) -> dict[str, Any]:
    """A model of `family` with `changes`, written into `directory` by rank 0, and trainers of it with `settings`.

    `variants` are further settings, of other trainers.

    The norms of qwen3 round to float32. If a prefix is shared, its gradients are rounded after they are summed.
    """
    ranks = current_ranks()
    ranks.on_first(lambda: write_model(directory, family, **changes))
    path = str(directory / f"{family}-0")

    def build(budget: int = WHOLE, **others: Any) -> Any:
        others |= {"max_grad_norm": math.inf, "max_tokens_per_microbatch": budget}
        return make_trainer(path, **ADAMW, **settings, **others)

    reference = make_trainer(path, updates=0, device="cpu").module.model

    def logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(reference, dict(weights), (tokens,), {"use_cache": False}).logits

    return {
        "build": build,
        "vocab_size": VOCAB_SIZE,
        "logits": logits,
        "optimizer": partial(torch.optim.AdamW, **ADAMW),
        "variants": tuple(partial(build, **variant) for variant in variants),
        "tolerance": tolerance,
    }
