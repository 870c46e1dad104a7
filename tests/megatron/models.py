"""The meshes of a number of ranks, and Megatron trainers of small models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from purerl.backends.megatron import mesh as groups
from purerl.backends.megatron.engine import MegatronTrainer
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.trainer import Config, build
from purerl.settings import Model

__all__ = ["OUTPUTS", "meshes", "open_trainer"]

OUTPUTS = {"critic": ("value",), "reward": ("classifier_score",)}
"""Of roles that have no log-probabilities."""


def meshes(ranks: int, model: str) -> Iterator[Mesh]:
    """Meshes of `ranks` ranks that can divide the model: each of them for some model, and not for every one."""
    has_experts = model in ("qwen3_moe", "experts in one layer")
    split = {"tensor": 2, "sequence_parallel": has_experts}
    tables = {
        1: ([Mesh()], [], []),
        2: (
            [Mesh(), Mesh(pipeline=2)],
            [Mesh(tensor=2), Mesh(tensor=2, sequence_parallel=True)],
            [Mesh(expert=2)],
        ),
        4: (
            [Mesh(**split, pipeline=2)],
            [],
            [Mesh(pipeline=2, expert=2)],
        ),
    }
    of_all, of_dense, of_experts = tables[ranks]
    yield from (*of_all, *(of_experts if has_experts else of_dense), *_OTHERS.get((ranks, model), ()))


_SEQUENCE = {"tensor": 2, "sequence_parallel": True}
_OTHERS = {
    (2, "qwen2"): [Mesh(context=2)],
    (2, "qwen3_moe"): [Mesh(**_SEQUENCE), Mesh(context=2)],
    (4, "qwen3"): [Mesh(context=2), Mesh(context=4), Mesh(tensor=2, context=2)],
    (4, "qwen2"): [Mesh(context=2, pipeline=2), Mesh(context=2, **_SEQUENCE)],
    (4, "qwen3_moe"): [
        *(Mesh(expert=2, **_SEQUENCE), Mesh(expert=4, **_SEQUENCE)),
        *(Mesh(context=2, expert=4), Mesh(context=2, **_SEQUENCE)),
    ],
    (4, "experts in one layer"): [Mesh(context=2, pipeline=2, expert=2)],
}
"""Meshes for one of several models that they divide in the same way: they take long."""


def open_trainer(
    path: str,
    mesh: Mesh,
    role: str = "policy",
    *,
    dtype: str = "float64",
    outputs: Sequence[str] | None = None,
    updates: int = 10,
    seed: int = 0,
    **settings: Any,
) -> MegatronTrainer:
    """A trainer of the model at `path`; Megatron's groups of another mesh in this process are replaced."""
    if groups._opened and groups._opened[0][1] != mesh:
        groups._opened.clear()
    outputs = outputs or OUTPUTS.get(role, ("logp", "entropy"))
    config = Config(mesh=mesh, **settings)
    return build(config, model=Model(path, dtype=dtype), role=role, outputs=outputs, updates=updates, seed=seed)
