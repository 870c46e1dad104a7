"""Ranks decide alike whether an optimizer step has a signal, also if only one of them has a row with an advantage.

torchrun --nproc-per-node 2 -m tests.backends.zero_gradient_ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from purerl.backends.hf.mesh import Mesh
from purerl.batch import with_fields
from purerl.ranks import current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.parallel_table import HEADS
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_step, train, weights_of
from tests.ranks import run_cases

MESHES: dict[str, Mesh] = {
    "replicated": Mesh(replicate=2),
    "sharded": Mesh(shard=2),
    "tensor": Mesh(tensor=2),
    "sequence": Mesh(sequence=2),
}


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    current_ranks().on_first(lambda: write_model(directory, "phi", **HEADS))
    for name, mesh in MESHES.items():
        folder = directory / name
        current_ranks().on_first(folder.mkdir)
        yield name, partial(_check, str(directory / "phi-0"), folder, mesh)


def _check(path: str, folder: Path, mesh: Mesh) -> None:
    """Two steps, one without a signal, one with a signal of a single row; and the same after a resumption."""
    build: Callable[[], Any] = partial(make_trainer, path, mesh=mesh, lr=1e-2, weight_decay=0.5)
    trainer, resumed = build(), build()
    train(trainer, 2)
    trainer.save(folder)
    current_ranks().gather(None)
    resumed.load(folder)
    before = weights_of(trainer)
    for rows, skipped in ((0, 1.0), (1, 0.0)):
        batch, objective, counts = make_step(5)
        advantage = torch.where(torch.arange(len(batch))[:, None] < rows, batch["advantage"], 0)
        step = with_fields(batch, advantage=advantage), objective, counts
        reports = [float(each.step(*step)["skipped"].total) for each in (trainer, resumed)]
        assert current_ranks().gather(reports) == [[skipped] * 2] * 2
        if not rows:
            assert_close("after a skipped step", weights_of(trainer), before, 0)
    assert_close("resumed", weights_of(resumed), weights_of(trainer), 0)


if __name__ == "__main__":
    run_cases(cases)
