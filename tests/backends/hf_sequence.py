"""The HF trainer with sequence parallelism over all ranks, as `purerl.testing.trainer` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from purerl.backends.hf.mesh import Mesh
from purerl.ranks import current_ranks
from tests.backends.hf_conformance import PACKED
from tests.backends.hf_conformance import conformance as of_trainer


def conformance(directory: Path) -> dict[str, Any]:
    settings = {"mesh": Mesh(sequence=current_ranks().size)}
    return of_trainer(directory, "phi", tolerance=1e-9, num_key_value_heads=2, settings=settings, variants=PACKED)
