"""The Megatron trainer on the ranks that run this equals the hf trainer in one process, on the same weights.

Scores, metrics, gradient norms and weights after two steps with clipping and weight decay, in uneven micro-batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from purerl.algos.algebra import prepare_step
from purerl.backends.megatron import context, engine, model, optimizer, schedule
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.router import RouterLoad
from purerl.protocols import Trainer
from purerl.ranks import Ranks, current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import CRITIC, POLICY, make_batch, make_step, regression
from tests.megatron.models import OUTPUTS, meshes, open_trainer
from tests.megatron.models_table import MODELS

NONE: Mapping[str, Any] = MappingProxyType({})
# An eps that is not small, so that AdamW depends on the scale of the gradient; a norm that is always exceeded; and few
# tokens in a micro-batch, so that micro-batches, and ranks, have different numbers of tokens.
SETTINGS = {"lr": 1e-2, "betas": (0.8, 0.9), "eps": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.05}
BUDGET = 12
FLOAT64, FLOAT32 = 1e-6, 2e-4
"""Tolerances, relative and absolute. Norms of transformers round to float32 in float64 too."""
EXPERTS = {"dtype": "float32", "loss": {"router_aux_loss_coef": 0.5}}
"""Settings of models with experts, which transformers does not compute in float64."""


OBJECTIVES = {
    "policy": (POLICY, "logp"),
    "critic": (CRITIC, "value"),
    "reward": (regression("classifier_score"), "classifier_score"),
}


def results(trainer: Trainer, role: str) -> dict[str, Tensor]:
    """Scores, and the metrics and weights of two steps."""
    objective, output = OBJECTIVES[role]
    found = {"score": trainer.score(make_batch(), (output,))[output]}
    for seed in range(2):
        for name, metric in trainer.step(*make_step(seed, objective)).items():
            found[f"{seed}: {name}"] = torch.tensor(float(metric.total / metric.weight))
    # The hf trainer names the weights of a model without a head as its decoder does.
    weights = {name.removeprefix("model."): weight.detach().clone() for name, weight in trainer.weights()}
    return found | weights


@functools.cache
def expected(path: str, role: str, dtype: str, others: tuple[tuple[str, Any], ...]) -> dict[str, Tensor]:
    """The results of the hf trainer in one process, in one micro-batch. Collective: rank 0 computes them."""

    def compute() -> dict[str, Tensor]:
        with mock.patch("purerl.ranks.current_ranks", Ranks):
            return results(
                make_trainer(path, role, outputs=OUTPUTS.get(role), dtype=dtype, **SETTINGS, **dict(others)), role
            )

    return current_ranks().on_first(compute)


def check(
    path: str,
    mesh: Mesh,
    *,
    role: str = "policy",
    dtype: str = "float64",
    loss: Mapping[str, Any] = NONE,
    **others: Any,
) -> None:
    """Raise AssertionError if the trainer with `mesh` differs from the hf trainer with the settings `loss`."""
    settings = {**SETTINGS, "max_tokens_per_microbatch": BUDGET, **loss, **others}
    trainer = open_trainer(path, mesh, role, dtype=dtype, **settings)
    need = expected(path, role, dtype, tuple(loss.items()))
    got = results(trainer, role)
    trainer.close()
    assert_close(f"{role} with {mesh}", got, need, FLOAT64 if dtype == "float64" else FLOAT32)


def check_gradient(path: str, mesh: Mesh, rows: int | None = None) -> None:
    """The gradient of each weight, by its name in the files, of the first `rows` rows, or of all of them."""
    step, counts = prepare_step(POLICY, make_batch()[:rows])
    with mock.patch("purerl.ranks.current_ranks", Ranks):
        need = make_trainer(path, **SETTINGS).gradient(step, POLICY, counts)
    trainer = open_trainer(path, mesh, **SETTINGS, max_tokens_per_microbatch=BUDGET)
    got = trainer.gradient(step, POLICY, counts)
    trainer.close()
    assert_close("gradient", got, {name.removeprefix("model."): value for name, value in need.items()}, FLOAT64)


# --- mutants -------------------------------------------------------------------------------------------------------


def check_mutant(mutant: Callable[[], Any], run: Callable[[], None]) -> None:
    """`run` fails, on at least one rank, if the code is replaced by `mutant`."""
    with mutant():
        try:
            run()
        except AssertionError:
            fails = True
        else:
            fails = False
    assert any(current_ranks().gather(fails)), "a mutant is not detected"


def divided_by_megatron() -> Any:
    """Megatron divides by the number of micro-batches and by that of data ranks."""
    true = model.transformer_config

    def changed(*args: Any, **kwargs: Any) -> Any:
        config = true(*args, **kwargs)
        config.calculate_per_token_loss = False
        return config

    return mock.patch.object(model, "transformer_config", changed)


def divided_by_tokens() -> Any:
    """The gradient is divided by the number of tokens that each micro-batch reports; here always 2."""
    from megatron.core.distributed import finalize_model_grads

    def changed(module: Any, num_tokens: Tensor, **options: Any) -> None:
        finalize_model_grads(module, torch.full_like(num_tokens, 2), **options)

    return mock.patch.object(optimizer, "_sum_gradients", changed)


def norm_of_own_experts() -> Any:
    """The norm has the gradients of the experts of this rank only."""
    true = optimizer._square

    def changed(part: Any) -> Tensor:
        with mock.patch.object(optimizer.dist, "all_reduce"):
            return true(part)

    return mock.patch.object(optimizer, "_square", changed)


def loss_in_each_micro_batch() -> Any:
    """The auxiliary loss is a mean over one micro-batch: the sum over all of them grows with their number."""
    true = RouterLoad.balance

    def changed(self: RouterLoad, counts: Tensor, coefficient: float) -> None:
        true(self, counts, coefficient)
        self.share = self.share * 3

    return mock.patch.object(RouterLoad, "balance", changed)


def _unchanged(self: object, metrics: Any) -> Any:
    return metrics


def one_stage_is_silent() -> Any:
    """Stages other than the last one have no metrics."""
    return mock.patch.object(engine.MegatronTrainer, "_tell_stages", new=_unchanged)


def score_of_the_token_before() -> Any:
    """A classifier reads the tokens from which action tokens are predicted."""
    return mock.patch.object(schedule.Reader, "positions", lambda self, action: action)


# --- mutants of context parallelism ----------------------------------------------------------------------------------


def angles_of_the_first_positions() -> Any:
    """Each context rank rotates queries and keys as if its positions were the first ones."""

    def changed(forward: Any, group: Any, length: int, **options: Any) -> Tensor:
        return forward(length, packed_seq=True)[: length // group.size()]

    return mock.patch.object(context, "_own_angles", changed)


def positions_in_another_order() -> Any:
    """Attention gets the positions of context ranks in another order, and so another mask."""
    true = context._exchange
    return mock.patch.object(context, "_exchange", lambda parts, group: true(parts, group).flip(0))


def heads_of_other_ranks() -> Any:
    """The attended values of the heads are in another order."""
    true = context._to_positions

    def changed(x: Tensor, group: Any) -> Tensor:
        return true(x, group).unflatten(2, (group.size(), -1)).flip(2).flatten(2)

    return mock.patch.object(context, "_to_positions", changed)


def copies_beside_other_heads() -> Any:
    """Key and value heads are repeated as a whole, and not each one beside its copy."""
    return mock.patch.object(context, "_repeated", lambda x, copies: x.repeat(1, 1, copies, 1))


def outputs_of_own_positions() -> Any:
    """A context rank has the outputs of its own positions only."""
    return mock.patch.object(schedule, "sum_over", lambda values, group: values)


def gradient_of_each_rank() -> Any:
    """The gradients of outputs are summed over the context ranks, which all have the same loss."""
    return mock.patch.object(schedule, "sum_over", lambda values, group: all_reduce(values, group=group))


def divided_by_context() -> Any:
    """The gradient is a mean over two context ranks."""
    true = optimizer._sum_gradients

    def changed(modules: Any, *args: Any, **options: Any) -> None:
        true(modules, *args, **options)
        modules[0].scale_gradients(0.5)

    return mock.patch.object(optimizer, "_sum_gradients", changed)


def routers_of_the_first_positions() -> Any:
    """The auxiliary loss counts, on each context rank, as if it had the first positions."""
    return mock.patch.object(schedule, "own_positions", _first_numbers)


def _first_numbers(values: Tensor, group: Any) -> Tensor:
    own = context.own_positions(values, group)
    return own if (values >= 0).all() else values[:, : own.shape[1]]  # numbers of tokens may be negative, tokens not


# --- cases ---------------------------------------------------------------------------------------------------------


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    families = {name: (family, changes) for name, (family, changes) in MODELS.items() if name != "llama"}
    paths = ranks.on_first(
        lambda: {name: write_model(directory / name, *each[:1], **each[1]) for name, each in families.items()}
    )
    for name, path in paths.items():
        has_experts = "experts" in name or "moe" in name
        for mesh in meshes(ranks.size, name):
            run = functools.partial(check, path, mesh, **(EXPERTS if has_experts else {}))
            yield f"{name}, {mesh}", run
            divided = {"dtype": "float32", "distributed_optimizer": True}
            yield f"{name}, {mesh}, distributed optimizer", functools.partial(run, **divided)
            if mesh.context > 1 and ranks.size == 4:
                continue  # the others are tested on 2 ranks
            yield f"{name}, {mesh}, recomputed", functools.partial(run, recompute="layers")
            yield f"{name}, {mesh}, critic", functools.partial(run, role="critic")
            yield f"{name}, {mesh}, reward model", functools.partial(run, role="reward")
            if not has_experts:
                yield f"{name}, {mesh}, selective", functools.partial(run, recompute="selective")
                yield f"{name}, {mesh}, gradient", functools.partial(check_gradient, path, mesh)
    if ranks.size == 4:
        one_row = functools.partial(check_gradient, paths["qwen3"], Mesh(context=2), rows=1)
        yield "a data rank without rows, context=2", one_row
    yield from mutants(paths, ranks.size)


def mutants(paths: Mapping[str, str], ranks: int) -> Iterator[tuple[str, Callable[[], object]]]:
    dense = functools.partial(check, paths["qwen3"])
    experts = functools.partial(check, paths["qwen3_moe"], **EXPERTS)
    changes = {
        "division by micro-batches and ranks": (divided_by_megatron, functools.partial(dense, Mesh())),
        "division by tokens": (divided_by_tokens, functools.partial(dense, Mesh())),
        "score of the token before": (score_of_the_token_before, functools.partial(dense, Mesh(), role="reward")),
        "auxiliary loss per micro-batch": (loss_in_each_micro_batch, functools.partial(experts, Mesh())),
    }
    if ranks > 1:
        changes["norm of own experts"] = norm_of_own_experts, functools.partial(experts, Mesh(expert=2))
        changes["metrics of the last stage"] = one_stage_is_silent, functools.partial(dense, Mesh(pipeline=2))
    if ranks == 2:
        tied = functools.partial(check, paths["qwen2"], Mesh(context=2))
        of_all = (angles_of_the_first_positions, positions_in_another_order, heads_of_other_ranks)
        of_all += outputs_of_own_positions, gradient_of_each_rank, divided_by_context
        changes |= {mutant.__name__: (mutant, tied) for mutant in of_all}
        changes["load of others"] = routers_of_the_first_positions, functools.partial(experts, Mesh(context=2))
    if ranks == 4:
        changes["copies"] = copies_beside_other_heads, functools.partial(dense, Mesh(context=4))
    for name, (mutant, run) in changes.items():
        if not (ranks == 4 and name.startswith(("norm", "metrics"))):
            yield f"mutant: {name}", functools.partial(check_mutant, mutant, run)
