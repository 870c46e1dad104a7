"""The arguments of `purerl.testing.check_trainer` for the Megatron trainer. `PURERL_TEST` has the mesh and the model.

PURERL_TEST='{"model": "qwen3", "mesh": {"tensor": 2}}'
"""

from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.shape import shape_of
from purerl.ranks import current_ranks
from tests.backends.hf_conformance import ADAMW, SMALL, WHOLE
from tests.backends.tiny import VOCAB_SIZE, write_model
from tests.megatron.cuda_stand_in import install
from tests.megatron.models import open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.plain import logits

DENSE, EXPERTS = 1e-9, 1e-6
"""Tolerances in float64. The softmax of routers is computed in float32."""


def conformance(directory: Path) -> dict[str, Any]:
    install()
    case = json.loads(os.environ["PURERL_TEST"])
    mesh, (family, changes) = Mesh(**case["mesh"]), MODELS[case["model"]]
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
        "tolerance": EXPERTS if shape.experts else DENSE,
    }
