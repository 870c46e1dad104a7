"""The optimizer in main memory equals Megatron's, on the ranks that run this.

    python -m tests.megatron.world 2 offloaded

Both compute with torch's fused kernel for CPUs, so all bits are equal: scores, metrics, gradient norms and weights of
clipped steps with weight decay and a schedule, before and after weights are loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor

from purerl.backends.megatron import optimizer
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.offload import HostAdamW
from purerl.backends.weights import TensorWeights
from purerl.ranks import current_ranks
from purerl.testing.trainer.reference import assert_close
from tests.backends.tiny import write_model
from tests.megatron.models import open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.planned import check_states
from tests.megatron.saved import BFLOAT16, check_resume
from tests.megatron.training import BUDGET, SETTINGS, check_mutant, results

EXPERTS = Mesh(expert=2)


def check_equal(path: str, mesh: Mesh, dtype: str, *, divided: bool) -> None:
    """Steps, and steps after weights are loaded, are those of Megatron's optimizer bit for bit."""
    settings = {**SETTINGS, "max_tokens_per_microbatch": BUDGET, "lr_scheduler": "cosine"}
    settings |= {"dtype": dtype, "distributed_optimizer": divided}
    need, got = (_steps(path, mesh, settings | {"optimizer_offload": offload}) for offload in (False, True))
    assert_close(f"{dtype}, {mesh}", got, need, 0)


def _steps(path: str, mesh: Mesh, settings: dict[str, Any]) -> dict[str, Tensor]:
    trainer = open_trainer(path, mesh, **settings)
    for part in optimizer.parts_of(trainer.optimizer):
        for group in part.param_groups:
            group["fused"] = True
    before = results(trainer, "policy")
    trainer.load_weights(TensorWeights({name: weight.detach() / 2 for name, weight in trainer.weights()}))
    after = results(trainer, "policy")
    trainer.close()
    return before | {f"after: {name}": value for name, value in after.items()}


# --- mutants -------------------------------------------------------------------------------------------------------


def first_learning_rate() -> Any:
    """The learning rates of the schedule do not reach the optimizer."""
    true = HostAdamW._weights

    def changed(self: HostAdamW) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return (({**group, "lr": SETTINGS["lr"]}, weight) for group, weight in true(self))

    return mock.patch.object(HostAdamW, "_weights", changed)


def rounded_copies() -> Any:
    """Each step begins with the weights in bfloat16."""
    true = HostAdamW.step

    def changed(self: HostAdamW) -> None:
        self.reload()
        true(self)

    return mock.patch.object(HostAdamW, "step", changed)


def old_copies() -> Any:
    """Weights that were loaded do not reach the copies in float32."""
    return mock.patch.object(HostAdamW, "reload")


def without_clipping() -> Any:
    """Gradients by torch's name are clipped, which weights of an offloaded optimizer do not have."""

    def changed(of: Any) -> Iterator[Tensor]:
        parameters = (parameter for part in optimizer.parts_of(of) for parameter in part.get_parameters())
        return (parameter.grad for parameter in parameters if parameter.grad is not None)

    return mock.patch.object(optimizer, "_gradients", changed)


# --- cases ---------------------------------------------------------------------------------------------------------


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    dense, experts = (
        ranks.on_first(functools.partial(write_model, directory / name, MODELS[name][0], **MODELS[name][1]))
        for name in ("qwen2", "qwen3_moe")
    )
    for dtype, divided in (("float64", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)):
        yield f"{dtype}, divided: {divided}", functools.partial(check_equal, dense, Mesh(), dtype, divided=divided)
    if ranks.size > 1:
        of_dense = [(dense, Mesh(**{name: 2})) for name in ("tensor", "context", "pipeline")]
        for path, mesh in (*of_dense, (experts, EXPERTS)):
            for divided in (False, True):
                run = functools.partial(check_equal, path, mesh, "bfloat16", divided=divided)
                yield f"{mesh}, divided: {divided}", run
        yield from _resumes(dense, experts)
        for mutant in (first_learning_rate, rounded_copies, old_copies, without_clipping):
            run = functools.partial(check_equal, dense, Mesh(), "bfloat16", divided=False)
            yield f"mutant: {mutant.__name__}", functools.partial(check_mutant, mutant, run)


def _resumes(dense: str, experts: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Checkpoints with and without offload, of one mesh in another; and the bytes that are planned."""
    narrow = {"dtype": "bfloat16", "tolerance": BFLOAT16}
    cases = (
        (dense, Mesh(), Mesh(tensor=2), {"dtype": "float64", "tolerance": 1e-9}),
        (dense, Mesh(tensor=2), Mesh(), {**narrow, "distributed_optimizer": True}),
        (experts, EXPERTS, Mesh(pipeline=2), narrow),
    )
    for path, first, second, settings in cases:
        for offloads in ((True, False), (False, True)):
            run = functools.partial(check_resume, path, first, second, optimizer_offload=offloads[0], **settings)
            yield f"{first} as {second}, {offloads}", functools.partial(run, changes={"optimizer_offload": offloads[1]})
    for divided in (False, True):
        run = functools.partial(check_states, experts, EXPERTS, "bfloat16", is_distributed=divided, is_offloaded=True)
        yield f"states, divided: {divided}", run
