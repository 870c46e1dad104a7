"""Optimizer steps of the Megatron trainer whose tokens go through the experts of the pass that computed `old_logp`.

Values and gradients are those of the plain model in float64 with the experts that it chose before the steps. Whole
runs, with the auxiliary loss and with records that are sent between ranks, are those of the hf trainer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoConfig

from purerl.algos.algebra import Weighted, prepare_step
from purerl.backends.hf.moe.replay import LIVE, ROUTES
from purerl.backends.hf.training.expert_records import RouteRecords
from purerl.backends.megatron import expert_replay as routes
from purerl.backends.megatron.engine import MegatronTrainer
from purerl.backends.megatron.expert_replay import Choices
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.router import RouterLoad
from purerl.backends.megatron.shape import shape_of
from purerl.loop.update import score, split
from purerl.protocols import Trainer
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close, weights_of
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import POLICY, make_batch
from tests.megatron import plain
from tests.megatron.models import meshes, open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.training import check_mutant

REPLAY = {"replay_routes": "old_logp", "max_tokens_per_microbatch": 12}
LARGE = {"lr": 0.1, **REPLAY}
"""Updates after which many tokens would go through other experts."""
FLOAT64, FLOAT32 = 1e-6, 3e-4
"""Tolerances, relative and absolute. Routers round to float32."""


def scored(policy: Trainer, dtype: torch.dtype = torch.float64) -> TensorDict:
    return score({"policy": policy}, make_batch(0, dtype), ("old_logp",))


def take_steps(policy: Trainer, batch: TensorDict, number: int) -> list[dict[str, float]]:
    step, counts = prepare_step(POLICY, batch)
    reports = [policy.step(step, POLICY, counts) for _ in range(number)]
    return [{name: float(metric.total / metric.weight) for name, metric in report.items()} for report in reports]


# --- laws ----------------------------------------------------------------------------------------------------------


def check_first_step(path: str, mesh: Mesh, **settings: Any) -> None:
    """The first step is bit for bit that of the live router."""
    replayed, live = (open_trainer(path, mesh, **LARGE | settings | own) for own in ({}, {"replay_routes": "off"}))
    [report], [expected] = (take_steps(policy, scored(policy), 1) for policy in (replayed, live))
    assert report.pop("router_changed_fraction") == 0
    assert report == expected
    assert_close("weights", weights_of(replayed), weights_of(live), 0)
    for policy in (replayed, live):
        policy.close()


def _every_third_is_live(records: RouteRecords, numbers: Tensor, time: int) -> Tensor:
    padded = PADDED(records, numbers, time)
    padded[:, ::3] = LIVE
    return padded


PADDED = RouteRecords.padded


def check_later_steps(path: str, mesh: Mesh, *, some_live: bool = False, **settings: Any) -> None:
    """After two steps, the loss and the gradient are those of the experts that were chosen before."""
    shape, batch = shape_of(AutoConfig.from_pretrained(path)), make_batch()
    policy = open_trainer(path, mesh, **LARGE | settings)
    chosen = plain.routes(shape, weights_of(policy), batch["tokens"])
    if some_live:
        for of_layer in chosen.values():
            of_layer[:, ::3] = LIVE
    with mock.patch.object(RouteRecords, "padded", _every_third_is_live if some_live else PADDED):
        rows = scored(policy)
        take_steps(policy, rows, 2)
        weights = weights_of(policy)
        step, counts = prepare_step(POLICY, rows)
        gradient = policy.gradient(step, POLICY, counts)
        report = take_steps(policy, rows, 1)[0]
    policy.close()
    loss, expected = _plain_gradient(shape, weights, batch, chosen)
    assert_close("gradient", gradient, expected, FLOAT64)
    assert_close("loss", {"": torch.tensor(report["loss/policy"])}, {"": loss}, FLOAT64)
    live, other = _plain_gradient(shape, weights, batch, plain.NO_ROUTES)
    assert (loss - live).abs() > 1e-3, "the choices have an effect"
    assert all(gradient[name].any() for name in other if name.endswith("mlp.gate.weight"))
    assert report["router_changed_fraction"] == _changed(shape, weights, batch, chosen)


def _plain_gradient(shape: Any, weights: dict[str, Tensor], batch: TensorDict, chosen: Any) -> tuple[Tensor, Any]:
    """The loss of `POLICY` and its gradient by the weights."""
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    temperature = torch.where(batch["temperature"] > 0, batch["temperature"], 1)[:, None, None]
    log_p = (plain.logits(shape, weights, batch["tokens"], chosen) / temperature).log_softmax(-1)
    logp = log_p[:, :-1].gather(-1, batch["tokens"][:, 1:, None])[..., 0]
    mask = batch["mask"][:, 1:]
    loss = -(batch["advantage"][:, 1:] * logp)[mask].mean()
    return loss.detach(), dict(zip(weights, torch.autograd.grad(loss, [*weights.values()]), strict=True))


def _changed(shape: Any, weights: dict[str, Tensor], batch: TensorDict, chosen: dict[int, Tensor]) -> float:
    """The fraction of tokens, before action tokens, and layers in which the live choice is another one."""
    live: dict[int, Tensor] = {}
    with torch.no_grad():
        plain.logits(shape, weights, batch["tokens"], chosen, live)
    before, changed = batch["action"].roll(-1, -1), list[Tensor]()
    for layer, of_layer in chosen.items():
        reads = before & (of_layer != LIVE).all(-1)
        changed.append((live[layer].sort(-1).values != of_layer.sort(-1).values).any(-1)[reads])
    fraction = torch.cat(changed).double().mean().item()
    assert fraction > 0
    return fraction


# --- the hf trainer --------------------------------------------------------------------------------------------------


def train(policy: Any) -> tuple[dict[str, Tensor], int]:
    """Metrics and weights after two passes over two mini-batches, twice, and how many records have moved."""
    batch, results, moved = make_batch(0, torch.float32), dict[str, Tensor](), 0
    for step in range(2):
        batch = score({"policy": policy}, batch.exclude(ROUTES), ("old_logp",))
        for epoch in range(2):
            for index, part in enumerate(split(batch, 2, "row", epoch)):
                prepared, counts = prepare_step(POLICY, part)
                for name, metric in policy.step(prepared, POLICY, counts).items():
                    results[f"{step} {epoch} {index} {name}"] = torch.as_tensor(metric.total / metric.weight).double()
        ranks = policy.extras.records.ranks
        moved += sum((number - 1) % ranks.size != ranks.rank for number in policy.extras.records.records)
    return results | {name.removeprefix("model."): weight for name, weight in weights_of(policy).items()}, moved


RUN = {"dtype": "float32", "lr": 2e-2, "eps": 1e-2, "router_aux_loss_coef": 0.1, "replay_routes": "old_logp"}


@functools.cache
def expected(path: str) -> dict[str, Tensor]:
    """The results of the hf trainer in one process. Collective: rank 0 computes them."""

    def compute() -> dict[str, Tensor]:
        with mock.patch("purerl.ranks.current_ranks", Ranks):
            return train(make_trainer(path, **RUN))[0]

    results = current_ranks().on_first(compute)
    assert any(name.endswith("router_changed_fraction") and value > 0 for name, value in results.items())
    return results


def check_run(path: str, mesh: Mesh, **settings: Any) -> None:
    """Two steps of two passes over two mini-batches are those of the hf trainer."""
    policy = open_trainer(path, mesh, **RUN, max_tokens_per_microbatch=12, **settings)
    results, moved = train(policy)
    total, data = sum(policy.groups.all.gather(moved)), policy.groups.data.size
    policy.close()
    assert_close(f"a run with {mesh}", results, expected(path), FLOAT32)
    assert (total > 0) == (data > 1), f"{total} records have moved between {data} data ranks"


# --- mutants -------------------------------------------------------------------------------------------------------


def _choose(changed: Callable[..., Any]) -> Any:
    return mock.patch.object(Choices, "choose", changed)


TRUE = Choices.choose
TOP_K = routes.top_k


def of_the_token_before() -> Any:
    def choose(self: Choices, router: int, number: Tensor, *others: Tensor) -> Any:
        return TRUE(self, router, number if self.replayed is None else number.roll(1), *others)

    return _choose(choose)


def of_the_layer_before() -> Any:
    def choose(self: Choices, router: int, *others: Tensor) -> Any:
        return TRUE(self, router if self.replayed is None else router - 1, *others)

    return _choose(choose)


def nothing_replayed() -> Any:
    return mock.patch.object(routes, "top_k", lambda scores, live, replayed: (scores.gather(-1, live), live))


def weights_without_gradient() -> Any:
    def changed(*arguments: Tensor) -> Any:
        values, indices = TOP_K(*arguments)
        return values.detach(), indices

    return mock.patch.object(routes, "top_k", changed)


def weights_of_the_live_experts() -> Any:
    def changed(scores: Tensor, live: Tensor, replayed: Tensor) -> Any:
        return scores.gather(-1, live), TOP_K(scores, live, replayed)[1]

    return mock.patch.object(routes, "top_k", changed)


def live_as_the_first_expert() -> Any:
    return mock.patch.object(routes, "top_k", lambda scores, live, replayed: TOP_K(scores, live, replayed.clamp(min=0)))


def rounded() -> Any:
    def changed(*arguments: Tensor) -> Any:
        values, indices = TOP_K(*arguments)
        return values * (1 + 1e-6), indices

    return mock.patch.object(routes, "top_k", changed)


def load_of_others() -> Any:
    """The auxiliary loss counts other experts than those of the live router."""
    true = RouterLoad.observe

    def changed(self: RouterLoad, logits: Tensor, live: Tensor, *others: Tensor) -> Tensor:
        return true(self, logits, (live + 1) % logits.shape[-1], *others)

    return mock.patch.object(RouterLoad, "observe", changed)


def own_positions_only() -> Any:
    """A rank that reads a part of each row keeps the choices for this part."""
    true, alone = Choices.records, SimpleNamespace(size=lambda: 1)
    return mock.patch.object(Choices, "records", lambda self, parts, group: true(self, parts, alone))


def metric_of_one_rank() -> Any:
    """The fraction has the layers and the rows of one rank."""

    def changed(self: MegatronTrainer) -> dict[str, Weighted]:
        different, replayed = self.choices.changed.double()
        return {"router_changed_fraction": Weighted(different / replayed.clamp(min=1), replayed.clamp(max=1))}

    return mock.patch.object(MegatronTrainer, "_changed_fraction", changed)


# --- cases ---------------------------------------------------------------------------------------------------------


def write_models(directory: Path) -> dict[str, Any]:
    """The directory of each model that is tested, by its name; rank 0 writes them. Collective."""
    names = ("qwen3_moe", "experts in one layer")
    return current_ranks().on_first(
        lambda: {name: write_model(directory / name, MODELS[name][0], **MODELS[name][1]) for name in names}
    )


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    paths = write_models(directory)
    for name, path in paths.items():
        for mesh in meshes(ranks.size, name):
            yield f"{name}, {mesh}, run", functools.partial(check_run, path, mesh)
            if mesh.context > 1 and ranks.size == 4:
                continue  # the others are tested on 2 ranks
            yield f"{name}, {mesh}, later steps", functools.partial(check_later_steps, path, mesh)
            if name == "qwen3_moe" and ranks.size == 2:
                yield f"{name}, {mesh}, first step", functools.partial(check_first_step, path, mesh)
                partly = functools.partial(check_later_steps, path, mesh, some_live=True)
                yield f"{name}, {mesh}, some tokens without a record", partly
                recomputed = functools.partial(check_later_steps, path, mesh, recompute="layers")
                yield f"{name}, {mesh}, recomputed", recomputed
    if ranks.size == 2:
        yield from mutants(paths["qwen3_moe"])


def mutants(path: str) -> Iterator[tuple[str, Callable[[], object]]]:
    first = functools.partial(check_first_step, path, Mesh())
    later, partly = (functools.partial(check_later_steps, path, some_live=some_live) for some_live in (False, True))
    table = (
        (of_the_token_before, functools.partial(later, Mesh())),
        (of_the_layer_before, functools.partial(later, Mesh())),
        (nothing_replayed, functools.partial(later, Mesh())),
        (weights_without_gradient, functools.partial(later, Mesh())),
        (weights_of_the_live_experts, functools.partial(later, Mesh())),
        (live_as_the_first_expert, functools.partial(partly, Mesh())),
        (rounded, first),
        (load_of_others, functools.partial(check_run, path, Mesh())),
        (own_positions_only, functools.partial(check_run, path, Mesh(tensor=2, sequence_parallel=True))),
        (own_positions_only, functools.partial(check_run, path, Mesh(context=2))),
        (metric_of_one_rank, functools.partial(later, Mesh(pipeline=2))),
    )
    for mutant, run in table:
        yield f"mutant: {mutant.__name__}", functools.partial(check_mutant, mutant, run)
