"""Checkpoints of one mesh that are loaded into every other one, by torchrun on real processes.

    torchrun --nproc-per-node 2 -m tests.backends.checkpoint_table

A trainer that has loaded a checkpoint takes the next step as the one that has saved it: with the same bits if the mesh
is the same, and within rounding if it is not. Checkpoints are staged, and written by a thread while the trainer takes
the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from purerl.backends.hf.lora import Lora
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.training.engine import HFTrainer
from purerl.errors import CheckpointError
from purerl.ranks import Ranks, current_ranks, ranks_of_thread
from purerl.system.digests import digest_of
from purerl.testing.trainer.reference import assert_close
from tests.backends.parallel_table import ADAMW, FLOAT64, HEADS, MESHES
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_step
from tests.ranks import run_cases

ONE = "one process"


def _alone(name: str) -> AbstractContextManager[object]:
    """In this block a trainer of one process is built; every rank has its own."""
    return mock.patch("purerl.ranks.current_ranks", Ranks) if name == ONE else nullcontext()


def _build(path: str, name: str, **settings: Any) -> HFTrainer:
    mesh = MESHES[current_ranks().size].get(name, Mesh())
    with _alone(name):
        return make_trainer(path, mesh=mesh, **ADAMW, **{"outputs": ("logp", "value"), **settings})


def _next_step(trainer: HFTrainer) -> dict[str, Tensor]:
    """The weights after the next step; with those of heads."""
    trainer.step(*make_step(7))
    return _weights(trainer)


def _weights(trainer: HFTrainer) -> dict[str, Tensor]:
    from purerl.backends.hf.weights.gather import full_tensors

    return {name: value.detach().clone() for name, value in full_tensors(trainer.parameters)}


def _save(trainer: HFTrainer, path: Path, name: str) -> dict[str, Tensor]:
    """Write a checkpoint in the background; return the weights after the step that is taken meanwhile."""
    ranks, digests = current_ranks(), {}
    ranks.on_first(lambda: path.mkdir(parents=True))
    staged, own = trainer.stage(), Ranks() if name == ONE else ranks_of_thread("table")
    is_writing = name != ONE or ranks.is_first  # processes that are not ranks of one trainer write alone
    thread = Thread(target=lambda: digests.update(staged.write(path, own)))
    if is_writing:
        thread.start()
    after = _next_step(trainer)
    if is_writing:
        thread.join()
    written = ranks.gather(digests)
    files = {file: digest for each in written for file, digest in each.items()}
    assert files == {file.name: digest_of(file) for file in path.iterdir()}
    assert sum(len(each) for each in written) == len(files), "each file is written by one rank"
    return after


def check_meshes(directory: Path, path: str, names: Sequence[str], tolerance: float, **settings: Any) -> None:
    """Raise AssertionError if a checkpoint of one of `names` is continued in another way by one of them."""
    folder = current_ranks().gather(directory / f"meshes-{time.monotonic_ns()}")[0]
    expected: dict[str, dict[str, Tensor]] = {}
    for name in names:
        trainer = _build(path, name, **settings)
        trainer.step(*make_step(1))
        expected[name] = _save(trainer, folder / name.replace(" ", "-"), name)
        trainer.close()
    for name in names:
        loaded = _build(path, name, **settings)
        for saved in names:
            loaded.load(folder / saved.replace(" ", "-"))
            exact = 0 if saved == name else tolerance
            assert_close(f"{saved} continued by {name}", _next_step(loaded), expected[saved], exact)
        loaded.close()


def check_parts(directory: Path, path: str, name: str, **settings: Any) -> None:
    """Raise AssertionError if weights that are packed in one tensor are others after a load into one process."""
    folder = current_ranks().gather(directory / f"parts-{time.monotonic_ns()}")[0]
    trainer = _build(path, name, **settings)
    trainer.step(*make_step(1))
    before = _weights(trainer)
    _save(trainer, folder, name)
    for other in (name, ONE):
        loaded = _build(path, other, **settings)
        loaded.load(folder)
        assert_close(f"{name} loaded by {other}", _weights(loaded), before, 0)


def check_errors(directory: Path, path: str, name: str) -> None:
    """A rank that cannot write, and a file of a rank that is missing, are errors on every rank."""
    ranks, folder = current_ranks(), directory / f"errors-{name.replace(' ', '-')}"
    trainer = _build(path, name)
    before = _weights(trainer)
    ranks.on_first(lambda: [(folder / part).mkdir(parents=True) for part in ("__1_0.distcp", "whole")])
    ranks.gather(None)
    with pytest.raises(IsADirectoryError):  # in the place of the file of rank 1
        trainer.save(folder)
    trainer.save(folder / "whole")
    ranks.on_first((folder / "whole" / "__1_0.distcp").unlink)
    trainer.step(*make_step(1))
    after = _weights(trainer)
    with pytest.raises(CheckpointError, match="__1_0.distcp"):
        trainer.load(folder / "whole")
    assert_close("after a refusal", _weights(trainer), after, 0)
    assert any(not torch.equal(after[key], value) for key, value in before.items())


def checks(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    ranks = current_ranks()
    ranks.on_first(lambda: [write_model(directory, name, **HEADS) for name in ("phi", "qwen3_moe")])
    phi, experts = str(directory / "phi-0"), str(directory / "qwen3_moe-0")
    names = (*MESHES[ranks.size], ONE)
    yield "every mesh", partial(check_meshes, directory, phi, names, FLOAT64)
    for name, mesh in MESHES[ranks.size].items():
        if mesh.tensor > 1:
            yield f"{name}, experts", partial(check_parts, directory, experts, name, dtype="float32")
    if ranks.size == 2:
        without = [name for name in names if name != "tensor"]
        lora = {"lora": Lora(rank=2), "outputs": ("logp",)}
        yield "every mesh, LoRA", partial(check_meshes, directory, phi, without, FLOAT64, **lora)
        for name in ("replicated", "sharded"):
            yield f"{name}, errors", partial(check_errors, directory, phi, name)


if __name__ == "__main__":
    run_cases(checks)
