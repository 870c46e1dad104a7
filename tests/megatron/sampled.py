"""The Megatron trainer with experts that a generator has recorded: the plain model in float64 with these experts.

Each rank reads the records of its rows from the store, and takes the layers of its stage. Some records have the layers
with a router, and others all layers of the model, as engines return them.
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
from transformers import AutoConfig

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.moe.replay import LIVE, ROUTES, Routers
from purerl.backends.hf.training.expert_records import SampledRoutes
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.shape import Shape, shape_of
from purerl.batch import with_fields
from purerl.expert_routes import RouteStore
from purerl.loop.update import score
from purerl.ranks import current_ranks
from purerl.testing.trainer.reference import assert_close, weights_of
from tests.backends.training import POLICY, make_batch
from tests.megatron import plain
from tests.megatron.models import meshes, open_trainer
from tests.megatron.replayed import FLOAT64, _changed, _plain_gradient, take_steps, write_models
from tests.megatron.training import check_mutant

SETTINGS = {"replay_routes": "generator", "lr": 0.1, "max_tokens_per_microbatch": 12}


def _records(shape: Shape, rows: int, time: int) -> tuple[dict[int, np.ndarray], dict[int, Tensor]]:
    """Random records by number, and their experts by layer, [rows, time, k]. The third row has none."""
    draw = np.random.default_rng(0)
    experts = draw.permuted(np.tile(np.arange(shape.experts), (rows, time, shape.layers, 1)), axis=-1)
    experts = experts[..., : shape.top_k]
    experts[:, 3] = experts[2] = LIVE
    routed = [layer for layer, is_moe in enumerate(shape.moe_layers) if is_moe]
    records = {1 + row: experts[row] if row % 2 else experts[row][:, routed] for row in range(rows) if row != 2}
    return records, {layer: torch.from_numpy(experts[:, :, layer]) for layer in routed}


def check(path: str, mesh: Mesh, **settings: Any) -> None:
    """Scores, the gradient, and a step are those of the experts in the store."""
    shape, batch = shape_of(AutoConfig.from_pretrained(path)), make_batch()
    policy, store = open_trainer(path, mesh, **SETTINGS | settings), RouteStore(Path(path) / "routes")
    records, chosen = _records(shape, *batch["tokens"].shape)
    policy.groups.all.on_first(lambda: store.replace_all(records), "the records")
    policy.use_routes(store)
    numbers = torch.tensor([1 + row if 1 + row in records else 0 for row in range(len(batch))])
    batch = score({"policy": policy}, with_fields(batch, **{ROUTES: numbers}), ("old_logp",))
    weights = weights_of(policy)
    step, counts = prepare_step(POLICY, batch)
    gradient = policy.gradient(step, POLICY, counts)
    report = take_steps(policy, batch, 1)[0]
    policy.close()
    loss, expected = _plain_gradient(shape, weights, batch, chosen)
    mask, advantage = batch["mask"], batch["advantage"]
    assert_close("scores", {"": -(batch["old_logp"] * advantage)[mask].mean()}, {"": loss}, FLOAT64)
    assert_close("gradient", gradient, expected, FLOAT64)
    assert_close("loss", {"": torch.tensor(report["loss/policy"])}, {"": loss}, FLOAT64)
    live, _ = _plain_gradient(shape, weights, batch, plain.NO_ROUTES)
    assert (loss - live).abs() > 1e-3, "the choices have an effect"
    changed = _changed(shape, weights, batch, chosen)
    assert abs(report["router_changed_fraction"] - changed) < FLOAT64


# --- mutants -------------------------------------------------------------------------------------------------------


def of_the_token_before() -> Any:
    return mock.patch.object(SampledRoutes, "padded", lambda *arguments: PADDED(*arguments).roll(1, 1))


def of_another_row() -> Any:
    return mock.patch.object(SampledRoutes, "padded", lambda *arguments: PADDED(*arguments).roll(1, 0))


def of_the_first_stage() -> Any:
    """A stage takes the layers from the first one on."""
    return mock.patch.object(Routers, "columns", lambda self, count: [*range(len(self.layers))])


PADDED = SampledRoutes.padded


# --- cases ---------------------------------------------------------------------------------------------------------


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    paths = write_models(directory)
    for name, path in paths.items():
        for mesh in meshes(ranks.size, name):
            yield f"{name}, {mesh}", functools.partial(check, path, mesh)
    if ranks.size == 2:
        own, stages = (functools.partial(check, paths["qwen3_moe"], mesh) for mesh in (Mesh(), Mesh(pipeline=2)))
        for mutant, run in ((of_the_token_before, own), (of_another_row, own), (of_the_first_stage, stages)):
            yield f"mutant: {mutant.__name__}", functools.partial(check_mutant, mutant, run)
