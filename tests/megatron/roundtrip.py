"""Hugging Face's files to Megatron's parameters and back is bit-equal, in the layouts of the ranks that run this."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.ranks import current_ranks
from tests.backends.tiny import write_model
from tests.megatron.models import meshes, open_trainer
from tests.megatron.models_table import MODELS


def check(path: str, mesh: Mesh) -> None:
    files = load_file(Path(path) / "model.safetensors")
    trainer = open_trainer(path, mesh, updates=0)
    weights = trainer.weights()
    found = dict(weights)
    assert weights.metadata == {name: (tuple(value.shape), value.dtype) for name, value in files.items()}
    assert found.keys() == files.keys()
    different = [name for name in files if not torch.equal(files[name], found[name].cpu())]
    assert not different, different
    trainer.close()


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    for name, (family, changes) in MODELS.items():
        path = ranks.on_first(lambda: write_model(directory / name, family, **changes))  # noqa: B023 - called at once
        for mesh in meshes(ranks.size, name):
            yield f"{name}, {mesh}", functools.partial(check, path, mesh)
