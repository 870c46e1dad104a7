"""The HF trainer with its model sharded from outside by FSDP2, as `purerl.testing.trainer` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard

from purerl.backends.hf.module import layers_of
from tests.backends.hf_conformance import conformance as of_trainer


def shard(module: nn.Module) -> None:
    """Shard every layer and the rest, as in the docstring of `purerl.backends.hf.trainer`."""
    for layer in layers_of(module):
        fully_shard(layer)
    fully_shard(module)


def conformance(directory: Path) -> dict[str, Any]:
    return of_trainer(directory, "gpt2", tolerance=1e-9, parallelize=shard)
