"""bfloat16 weights on two ranks: all ranks store the same bits, and a run resumes with the same ones.

torchrun --nproc-per-node 2 -m tests.backends.rounding_ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.engine import HFTrainer
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.parallel_table import HEADS
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_step, train, weights_of
from tests.ranks import run_cases

MESHES: dict[str, dict[str, Any]] = {
    "replicated": {"mesh": Mesh(replicate=2)},
    "sharded": {"mesh": Mesh(shard=2)},
    "offloaded": {"mesh": Mesh(shard=2), "cpu_offload": True},
    "tensor": {"mesh": Mesh(tensor=2)},
}
STEPS = 3


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    path = str(directory / "phi-0")
    current_ranks().on_first(lambda: write_model(directory, "phi", **HEADS))
    for rule in ("compensated", "stochastic"):
        with mock.patch("purerl.ranks.current_ranks", Ranks):
            alone = _build(path, rounding=rule)
            reports = train(alone, STEPS)
        for name, settings in MESHES.items():
            folder = directory / f"{rule}-{name}"
            current_ranks().on_first(folder.mkdir)
            arguments = partial(_build, path, rounding=rule, **settings), folder, weights_of(alone), reports
            yield f"{rule}, {name}", partial(_check, *arguments)


def _build(path: str, **settings: Any) -> HFTrainer:
    return make_trainer(path, dtype="bfloat16", lr=1e-4, updates=100, share_prefixes=False, **settings)


def _check(build: Callable[[], HFTrainer], folder: Path, alone: dict[str, Tensor], reports: list[dict[str, float]]):
    trainer, resumed = build(), build()
    got = train(trainer, STEPS)
    weights = weights_of(trainer)
    digests = current_ranks().gather([weight.view(torch.int16).sum().item() for weight in weights.values()])
    assert digests[0] == digests[1], "weights differ between ranks"
    # Gradients are summed in another order, in bfloat16, so some weights are in the neighboring number.
    same = [float((weights[name] == alone[name]).double().mean()) for name in alone]
    assert sum(same) / len(same) > 0.8, same
    lost = [[report["update_lost"] for report in each] for each in (got, reports)]
    assert_close("lost", {"lost": torch.tensor(lost[0])}, {"lost": torch.tensor(lost[1])}, 0.2)
    trainer.save(folder)
    current_ranks().gather(None)
    resumed.load(folder)
    for each in (trainer, resumed):
        each.step(*make_step(STEPS))
    assert_close("resumed", weights_of(resumed), weights_of(trainer), 0)


if __name__ == "__main__":
    run_cases(cases)
