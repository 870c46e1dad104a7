"""The conformance suite of trainers for the Megatron trainer."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.shape import shape_of
from purerl.ranks import current_ranks
from purerl.testing import check_trainer
from purerl.testing.trainer.resources import shared_directory
from tests.backends.hf_conformance import ADAMW, SMALL, WHOLE
from tests.backends.tiny import VOCAB_SIZE, write_model
from tests.megatron.models import open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.plain import logits

DENSE, EXPERTS, ON_GPU = 1e-9, 1e-6, 1e-5
"""Tolerances in float64. The softmax of routers is computed in float32, and so are the angles of rotary embeddings,
whose sines and cosines differ on a GPU.
"""


def count_checks(model: str, mesh: Mesh) -> int:
    """Run the suite for a model of `MODELS`; return the number of checks."""
    with shared_directory() as directory:
        return check_trainer(**_arguments(directory, model, mesh))


def _arguments(directory: Path, model: str, mesh: Mesh) -> dict[str, Any]:
    family, changes = MODELS[model]
    path = current_ranks().on_first(lambda: write_model(directory, family, **changes))
    shape = shape_of(AutoConfig.from_pretrained(path))

    def build(budget: int = WHOLE, **others: Any) -> Any:
        others |= {"max_grad_norm": math.inf, "max_tokens_per_microbatch": budget}
        return open_trainer(path, mesh, **ADAMW, **others)

    return {
        "build": build,
        "vocab_size": VOCAB_SIZE,
        "logits": partial(logits, shape),
        "optimizer": partial(torch.optim.AdamW, **ADAMW),
        "variants": (partial(build, SMALL), partial(build, SMALL, recompute="layers")),
        "tolerance": ON_GPU if torch.cuda.is_available() else EXPERTS if shape.experts else DENSE,
    }
