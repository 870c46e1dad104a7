"""The planned memory of the ranks that run this, against that of a trainer in the same layout.

    python -m tests.megatron.world 2 planned

Parameters, gradients, moments and copies in float32 are equal in number. What a layer keeps for the backward pass is
half of the difference between models with four layers and with two, in what autograd has saved after the forward pass.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from purerl.algos.algebra import prepare_step
from purerl.backends.hf.memory.simulation import fake_model
from purerl.backends.hf.memory.trainer import probe_objective
from purerl.backends.megatron import activations, memory
from purerl.backends.megatron.activations import positions, scores, sizes_of
from purerl.backends.megatron.engine import MegatronTrainer
from purerl.backends.megatron.mesh import MegatronMesh as Mesh
from purerl.backends.megatron.optimizer import parts_of
from purerl.backends.megatron.trainer import Config
from purerl.ranks import current_ranks
from purerl.settings import Model
from purerl.system.memory_use import COPIES, GRADIENTS, MOMENTS, PARAMETERS, Workload
from tests.backends.tiny import write_model
from tests.megatron.models import meshes, open_trainer
from tests.megatron.models_table import MODELS
from tests.megatron.training import check_mutant
from tests.planning import models
from tests.planning.rows import full_rows

OUTPUTS = ("logp", "entropy")
PROMPT, COMPLETION, ROWS = 16, 48, 2
TOLERANCE = 0.08
"""Of the activations of a layer: small tensors, such as angles of rotary embeddings, are not in the formulas."""


def check_parameters(path: str, mesh: Mesh, role: str) -> None:
    """The number of parameters of this rank, exactly."""
    trainer = open_trainer(path, mesh, role, updates=0)
    outputs = ("value",) if role == "critic" else OUTPUTS
    stage = trainer.groups.pipeline.rank()
    planned = memory.parameters_of_stage(fake_model(Model(path)), mesh, stage, outputs).total
    own = sum(parameter.numel() for parameter in trainer.reader.model.parameters())
    trainer.close()
    assert planned == own, f"{planned} parameters planned, and {own} in stage {stage} with {mesh}"


def check_states(path: str, mesh: Mesh, dtype: str, *, is_distributed: bool, is_offloaded: bool = False) -> None:
    """The bytes of all states, in the sum over the ranks; a rank has up to one element more of each kind."""
    options = {"distributed_optimizer": is_distributed, "optimizer_offload": is_offloaded}
    ranks, settings = current_ranks(), Config(mesh=mesh, **options)
    workload = Workload(rows=8, group_size=1, minibatches=1, prompt_tokens=8, completion_tokens=8, ranks=ranks.size)
    trainer = open_trainer(path, mesh, dtype=dtype, **options)
    causal, stage = fake_model(Model(path, dtype=dtype)), trainer.groups.pipeline.rank()
    layout = memory.Layout(settings, sizes_of(causal), causal, OUTPUTS, workload, is_trained=True)
    planned, own = {**layout.states(stage), **layout.host(stage)}, _states(trainer)
    trainer.close()
    assert layout.host(stage).keys() == ({COPIES, MOMENTS} if is_offloaded else set())
    assert planned.keys() == {name for name, size in own.items() if size}
    for name, size in planned.items():
        all_planned, all_own = (sum(ranks.gather(value)) for value in (size, own[name]))
        assert 0 <= all_planned - all_own <= 32 * ranks.size, f"{name}: {all_planned} planned, and {all_own}"


def _states(trainer: MegatronTrainer) -> dict[str, int]:
    parameters = list(trainer.reader.model.parameters())
    optimizers = [part for part in parts_of(trainer.optimizer) if part.optimizer is not None]
    moments = [part.optimizer.state[p] for part in optimizers for p in part.optimizer.state]
    copies = [getattr(parameter, "main_param", None) for parameter in parameters]
    copies += [state.get("weight") for state in moments]
    return {
        PARAMETERS: _size(parameters),
        GRADIENTS: _size(parameter.main_grad for parameter in parameters),
        MOMENTS: _size(state[name] for state in moments for name in ("exp_avg", "exp_avg_sq")),
        COPIES: _size(copy for copy in copies if copy is not None),
    }


def _size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_layer(paths: dict[int, str], mesh: Mesh, dtype: str, recompute: str) -> None:
    """Tensors that a layer keeps for the backward pass. It reads all tokens of a row but the last, or one more."""
    few, many = (_saved(paths[layers], mesh, dtype, recompute) for layers in (2, 4))
    sizes, width = sizes_of(fake_model(Model(paths[2]))), 2 if dtype == "bfloat16" else 4
    length = PROMPT + COMPLETION - (0 if mesh.sequence_parallel or mesh.context > 1 else 1)
    options = {"has_experts": any(sizes.moe_layers), "is_selective": recompute == "selective"}
    planned = activations.kept(sizes, mesh, ROWS * length, width, **options)
    planned += scores(sizes, mesh, ROWS, length, width) if recompute == "none" else 0
    if recompute == "layers":
        planned = ROWS * length * sizes.hidden * width // (mesh.context * positions(mesh))
    own = (many - few) / 2
    assert abs(planned / own - 1) < TOLERANCE, f"{planned} bytes of a layer planned, and {own:.0f}"


def _saved(path: str, mesh: Mesh, dtype: str, recompute: str) -> int:
    """Bytes of what autograd has saved on this rank when the loss is computed, without parameters."""
    budget = ROWS * (PROMPT + COMPLETION)
    trainer = open_trainer(path, mesh, dtype=dtype, recompute=recompute, max_tokens_per_microbatch=budget)
    objective = probe_objective(("logp",))
    step, counts = prepare_step(objective, full_rows(ROWS * mesh.data(current_ranks().size), PROMPT, COMPLETION))
    parameters = {_storage(parameter) for parameter in trainer.reader.model.parameters()}
    saved: list[Tensor] = []
    sizes: list[int] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    def loss(*arguments: Any) -> Any:
        kept = {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in saved}
        sizes.append(sum(size for storage, size in kept.items() if storage not in parameters))
        return true_loss(*arguments)

    true_loss = trainer._loss
    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with hooks, mock.patch.object(trainer, "_loss", loss):
        trainer._accumulate("step", step, objective, counts, router_coefficient=0.0)
    trainer.close()
    return sizes[0]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# --- mutants -------------------------------------------------------------------------------------------------------


def divided_norms() -> Any:
    """A plan that divides norms among the tensor ranks."""
    return mock.patch.object(memory, "_WHOLE", memory.re.compile("nothing"))


def without_copy_of_embedding() -> Any:
    """A plan of a tied head that the last stage shares with the first one."""
    true = memory._parameters

    def changed(*args: Any) -> Any:
        return (part for part in true(*args) if part[0] != "head")

    return mock.patch.object(memory, "_parameters", changed)


def without_norms() -> Any:
    """A plan in which norms keep nothing."""
    true = activations.kept

    def changed(sizes: Any, mesh: Any, tokens: int, width: int, **options: Any) -> int:
        return true(sizes, mesh, tokens, width, **options) - 4 * max(width, 4) * tokens * sizes.hidden

    return mock.patch.object(activations, "kept", changed)


# --- cases ---------------------------------------------------------------------------------------------------------


def cases(directory: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    ranks = current_ranks()
    tiny = {
        name: ranks.on_first(functools.partial(write_model, directory / name, family, **changes))
        for name, (family, changes) in MODELS.items()
    }
    layouts = [(name, mesh) for name in MODELS for mesh in meshes(ranks.size, name)]
    for name, mesh in layouts:
        for role in ("policy", "critic"):
            yield f"{role}, {name}, {mesh}", functools.partial(check_parameters, tiny[name], mesh, role)
    of_states = [layout for layout in layouts if layout[0] in ("qwen3", "qwen3_moe")]
    for name, mesh in of_states:
        for dtype, is_distributed in itertools.product(("float32", "bfloat16"), (False, True)):
            run = functools.partial(check_states, tiny[name], mesh, dtype, is_distributed=is_distributed)
            yield f"states, {name}, {mesh}, {dtype}, distributed optimizer: {is_distributed}", run
    yield from _mutants(tiny, ranks.size)
    if ranks.size < 3:
        of_ranks = {1: (Mesh(),), 2: (Mesh(tensor=2, sequence_parallel=True), Mesh(context=2))}
        for mesh in of_ranks[ranks.size]:
            yield from _layers(directory, mesh)


def _layers(directory: Path, mesh: Mesh) -> Iterator[tuple[str, Callable[[], object]]]:
    paths = {
        name: {layers: _written(directory / f"{name}-{layers}", name, layers) for layers in (2, 4)}
        for name in ("qwen3", "qwen3_moe", "llama")
    }
    settings = [(name, "bfloat16", recompute) for name in paths for recompute in ("none", "selective")]
    if mesh.context == 1:
        settings += [("qwen3", dtype, "layers") for dtype in ("float32", "bfloat16")]
        settings += [("qwen3", "float32", recompute) for recompute in ("none", "selective")]
    for name, dtype, recompute in settings:
        run = functools.partial(check_layer, paths[name], mesh, dtype, recompute)
        yield f"a layer of {name}, {mesh}, {dtype}, {recompute}", run
    run = functools.partial(check_layer, paths["qwen3"], mesh, "bfloat16", "none")
    yield "mutant: norms keep nothing", functools.partial(check_mutant, without_norms, run)


def _mutants(tiny: dict[str, str], ranks: int) -> Iterator[tuple[str, Callable[[], object]]]:
    if ranks == 2:
        norms = functools.partial(check_parameters, tiny["qwen3"], Mesh(tensor=2), "policy")
        yield "mutant: norms are divided", functools.partial(check_mutant, divided_norms, norms)
        tied = functools.partial(check_parameters, tiny["qwen2"], Mesh(pipeline=2), "policy")
        yield "mutant: no copy of the embedding", functools.partial(check_mutant, without_copy_of_embedding, tied)


def _written(path: Path, family: str, layers: int) -> str:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    changes = experts if family == "qwen3_moe" else {}
    return current_ranks().on_first(lambda: models.write_model(path, family, num_hidden_layers=layers, **changes).path)
