"""Replayed experts on two ranks equal those of one process: cases that torchrun runs on real processes.

    torchrun --nproc-per-node 2 -m tests.backends.replayed_ranks

Mini-batches are other rows on each rank than the batch that was scored, so records are sent between ranks. Those of a
generator are read by each rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.mesh import Mesh
from purerl.backends.hf.moe.replay import ROUTES
from purerl.backends.hf.training.engine import HFTrainer
from purerl.backends.hf.weights.gather import full_tensors
from purerl.batch import with_fields
from purerl.expert_routes import RouteStore
from purerl.loop.update import score, split
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.parallel_table import FLOAT32, HEADS, LAYOUT, MESHES
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import POLICY, make_batch
from tests.ranks import run_cases

ADAMW = {"lr": 2e-2, "eps": 1e-2, "max_tokens_per_microbatch": 40, "router_aux_loss_coef": 0.1}


def train(path: str, **settings: Any) -> tuple[HFTrainer, dict[str, Tensor], int]:
    """The trainer, metrics and parameters after two passes over two mini-batches, and how many records have moved."""
    policy = make_trainer(path, dtype="float32", replay_routes="old_logp", **ADAMW, **settings)
    batch, found, moved = make_batch(0, torch.float32, LAYOUT), dict[str, Tensor](), 0
    for step in range(2):
        batch = score({"policy": policy}, batch.exclude(ROUTES), ("old_logp",))
        for epoch in range(2):
            for index, part in enumerate(split(batch, 2, "row", epoch)):
                prepared, counts = prepare_step(POLICY, part)
                for name, metric in policy.step(prepared, POLICY, counts).items():
                    found[f"{step} {epoch} {index} {name}"] = torch.stack([*map(torch.as_tensor, metric)]).double()
        assert policy.extras.records
        ranks = policy.mesh.data
        moved += sum((number - 1) % ranks.size != ranks.rank for number in policy.extras.records.records)
    found |= {name: value.detach().clone() for name, value in full_tensors(policy.parameters)}
    return policy, found, moved


@functools.cache
def expected(path: str) -> dict[str, Tensor]:
    """The results of one process, also if there are others."""
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        found = train(path)[1]
    assert any(name.endswith("router_changed_fraction") and value[0] > 0 for name, value in found.items())
    return found


def train_sampled(path: str, folder: Path, **settings: Any) -> dict[str, Tensor]:
    """Scores, metrics and parameters after two steps with random experts, as if a generator had recorded them."""
    policy = make_trainer(path, dtype="float32", replay_routes="generator", **ADAMW, **settings)
    batch, store, draw = make_batch(0, torch.float32, LAYOUT), RouteStore(folder), np.random.default_rng(0)
    numbers = torch.arange(len(batch)) % 4  # rows without a record, and rows with equal ones
    records = {k: draw.permuted(np.tile(np.arange(4), (99, 2, 1)), axis=-1)[..., :2] for k in range(1, 4)}
    policy.mesh.all.on_first(lambda: store.replace_all(records), "the records")
    policy.use_routes(store)
    batch = score({"policy": policy}, with_fields(batch, **{ROUTES: numbers}), ("old_logp",))
    found = {"scores": batch["old_logp"]}
    for index, part in enumerate(split(batch, 2, "row", 0)):
        prepared, counts = prepare_step(POLICY, part)
        for name, metric in policy.step(prepared, POLICY, counts).items():
            found[f"{index} {name}"] = torch.stack([*map(torch.as_tensor, metric)]).double()
    return found | {name: value.detach().clone() for name, value in full_tensors(policy.parameters)}


@functools.cache
def expected_sampled(path: str, folder: Path) -> dict[str, Tensor]:
    """The results of one process, also if there are others: each has a directory of its own."""
    number = current_ranks().rank
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        found = train_sampled(path, folder / f"of rank {number}")
    assert all(value[0] > 0 for name, value in found.items() if name.endswith("router_changed_fraction"))
    return found


def check_sampled(path: str, mesh: Mesh, settings: dict[str, Any]) -> None:
    found = train_sampled(path, Path(path) / "routes", mesh=mesh, **settings)
    assert_close("sampled", found, expected_sampled(path, Path(path)), FLOAT32)


def check(path: str, mesh: Mesh, settings: dict[str, Any]) -> None:
    policy, found, moved = train(path, mesh=mesh, **settings)
    assert_close("steps", found, expected(path), FLOAT32)
    total = sum(policy.mesh.all.gather(moved))
    assert (total > 0) == (policy.mesh.data.size > 1), f"{total} records have moved"


def checks(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    ranks = current_ranks()
    ranks.on_first(lambda: write_model(directory, "qwen3_moe", **HEADS))
    path = str(directory / "qwen3_moe-0")
    for name, mesh in MESHES[ranks.size].items():
        for rows, settings in {"padded": {}, "packed": {"packing": True, "recompute": "layers"}}.items():
            yield f"{name} {rows}", functools.partial(check, path, mesh, settings)
            yield f"{name} {rows}, sampled", functools.partial(check_sampled, path, mesh, settings)


if __name__ == "__main__":
    run_cases(checks)
