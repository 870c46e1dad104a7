"""An adapter on two ranks equals that of one process, for each mesh that LoRA works with.

torchrun --nproc-per-node 2 -m tests.backends.lora_ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor

from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.engine import HFTrainer
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.parallel_table import HEADS
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_batch, make_step, train, weights_of
from tests.ranks import run_cases

MESHES: dict[str, dict[str, Any]] = {
    "replicated": {"mesh": Mesh(replicate=2)},
    "sharded": {"mesh": Mesh(shard=2), "recompute": "layers"},
    "offloaded": {"mesh": Mesh(shard=2), "cpu_offload": True},
    "sequence": {"mesh": Mesh(sequence=2)},
}


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    path = str(directory / "phi-0")  # without a norm that rounds to float32
    current_ranks().on_first(lambda: write_model(directory, "phi", **HEADS))
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        alone = _build(path)
        train(alone, 2)
        expected = _results(alone)
    for name, settings in MESHES.items():
        folder = directory / name
        current_ranks().on_first(folder.mkdir)
        yield name, partial(_check, name, path, folder, expected, **settings)


def _check(name: str, path: str, folder: Path, expected: dict[str, Tensor], **settings: Any) -> None:
    """The second step is taken after a resumption, and what is exported is loaded by one process."""
    trainer, resumed = _build(path, **settings), _build(path, **settings)
    train(trainer, 1)
    trainer.save(folder)
    current_ranks().gather(None)
    resumed.load(folder)
    resumed.step(*make_step(1))
    assert_close(name, _results(resumed), expected, 1e-9)
    resumed.export(folder / "merged")
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        merged = make_trainer(str(folder / "merged"), "reference", updates=0).score(make_batch(), ["logp"])["logp"]
    assert_close(f"{name}, merged", {"logp": merged}, {"logp": expected["logp"]}, 1e-9)
    current_ranks().gather(None)  # every rank has read the files


def _build(path: str, **settings: Any) -> HFTrainer:
    # An eps that is not small, so that AdamW depends on the scale of the gradient.
    outputs = ("logp", "value")  # the head is divided, and the adapter is not
    return make_trainer(path, outputs=outputs, lora=Lora(rank=3), lr=1e-2, eps=1e-2, share_prefixes=False, **settings)


def _results(trainer: HFTrainer) -> dict[str, Tensor]:
    """The adapter, and log-probabilities with and without it."""
    scores = {name: each.score(make_batch(), ["logp"])["logp"] for name, each in _models(trainer).items()}
    return scores | weights_of(trainer)


def _models(trainer: HFTrainer) -> dict[str, Any]:
    return {"logp": trainer, "base": trainer.base()}


if __name__ == "__main__":
    run_cases(cases)
