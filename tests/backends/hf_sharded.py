"""The HF trainer with its model sharded over all ranks, as `purerl.testing.trainer` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.backends.hf.mesh import Mesh
from purerl.ranks import current_ranks
from tests.backends.hf_conformance import PACKED
from tests.backends.hf_conformance import conformance as of_trainer


def conformance(directory: Path) -> dict[str, Any]:
    settings = {"mesh": Mesh(shard=current_ranks().size)}
    return of_trainer(directory, "gpt2", tolerance=1e-9, settings=settings, variants=PACKED)
