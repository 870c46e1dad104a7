"""The memory of a trainer on one rank of a Megatron-core layout, by formulas. Nothing of Megatron-core is imported.

The parameters are those of transformers' model without values. A rank of stage s has, of a parameter of n elements,

    n / tensor                      matrices of its layers, and the biases of their outputs
    n / (expert * expert_tensor)    experts of its layers
    n                               norms, routers and the first projections of latent attention

The first stage has the embedding, the last one the output head and the final norm. Layers are divided as evenly as they
can be: layer i is in stage floor(i * pipeline / layers). With b bytes for each element of the weights, the states are

    parameters                 n b
    gradients                  n max(b, 4)
    parameters in float32      4 n / d, for 16-bit weights
    AdamW's moments            2 n max(b, 4) / d

where d is the number of ranks that divide the optimizer: of data x context ranks, 1 without `distributed_optimizer`,
and of experts the number of ranks that have the same experts. With `optimizer_offload` the last two are in main memory.

The activations are in `activations.py`. The schedule 1F1B keeps those of min(pipeline - s, micro-batches) micro-batches
in stage s (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
2104.04473). The rank that is reported is one of the stage that needs most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from purerl.backends.hf.decoder.architecture import architecture_of
from purerl.backends.hf.memory.simulation import fake_model
from purerl.backends.hf.model.token_model import HEADS
from purerl.backends.megatron.activations import Sizes, kept, logits, positions, scores, sizes_of, temporary
from purerl.backends.megatron.bridge import BUCKET
from purerl.backends.megatron.mesh import MegatronMesh
from purerl.backends.megatron.preview import preview
from purerl.backends.megatron.settings import TrainerConfig
from purerl.settings import Model
from purerl.system.memory_use import COPIES, GRADIENTS, MOMENTS, PARAMETERS, MemoryUse, Workload, refusal

__all__ = ["Count", "Layout", "memory_of_trainer", "parameters_of_stage"]

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_WHOLE = re.compile(r"norm\.|\.mlp\.gate\.|\.q_a_proj\.|\.kv_a_proj_with_mqa\.")
"""Parameters inside layers that every tensor rank has as a whole."""

_LOCAL = "attention by Megatron's local layers, which keep its scores; those of TransformerEngine need less"
_BALANCED = "tokens that are spread evenly over experts"


@frozen
class Count:
    """Elements of the parameters of a rank: of experts, and of everything else."""

    shared: int
    experts: int

    @property
    def total(self) -> int:
        """Elements of all parameters."""
        return self.shared + self.experts


def memory_of_trainer(
    config: TrainerConfig,
    *,
    model: Model,
    outputs: Sequence[str],
    is_trained: bool,
    workload: Workload,
    on_accelerator: bool = False,
) -> MemoryUse:
    """The memory of a trainer of `model` on the rank that needs most, with these settings and `outputs`.

    A model that the trainer refuses is planned as Megatron-core would divide it, and `refused` says why it is refused.
    It counts as on an accelerator, which the trainer needs, also with `on_accelerator` false.

    Raises: ConfigError if the configuration of the model cannot be read, or if the mesh does not fit the ranks.
    """
    config.mesh.data(workload.ranks)
    causal = fake_model(model, architecture=architecture_of(model, outputs, is_trained=is_trained))
    layout = Layout(config, sizes_of(causal), causal, tuple(outputs), workload, is_trained)
    stage = max(range(config.mesh.pipeline), key=layout.peak)
    remark = f"the rank that needs most is in stage {stage + 1} of {config.mesh.pipeline} of the pipeline"
    return MemoryUse(
        states=layout.states(stage),
        host=layout.host(stage),
        transient=layout.transient(stage),
        assumed=(_LOCAL, *([_BALANCED] if layout.sizes.experts else [])),
        refused=refusal(partial(preview, config, model=model)),
        remarks=(remark,) if config.mesh.pipeline > 1 else (),
    )


@frozen(eq=False)
class Layout:
    """The arguments of `memory_of_trainer`, and the model."""

    config: TrainerConfig
    sizes: Sizes
    causal: Any
    outputs: tuple[str, ...]
    workload: Workload
    is_trained: bool

    @property
    def width(self) -> int:
        """Bytes of an element of the weights."""
        return next(self.causal.parameters()).element_size()

    def peak(self, stage: int) -> int:
        """Bytes of a rank of `stage` in the phase that needs most."""
        largest = max(sum(sizes.values()) for sizes in self.transient(stage).values())
        return sum(self.states(stage).values()) + largest

    def count(self, stage: int) -> Count:
        return parameters_of_stage(self.causal, self.config.mesh, stage, self.outputs)

    def optimized(self, stage: int) -> int:
        """Elements of the parameters of a rank whose moments it has."""
        count, mesh, ranks = self.count(stage), self.config.mesh, self.workload.ranks
        if not self.config.distributed_optimizer:
            return count.total
        same, of_experts = mesh.data(ranks) * mesh.context, ranks // (mesh.pipeline * mesh.expert * mesh.expert_tensor)
        return -(-count.shared // same) - (-count.experts // of_experts)

    def states(self, stage: int) -> dict[str, int]:
        """Bytes of what stays in the memory of the device."""
        total, wide = self.count(stage).total, max(self.width, 4)
        if not self.is_trained:
            return {PARAMETERS: total * self.width}
        weights = {PARAMETERS: total * self.width, GRADIENTS: total * wide}
        return weights if self.config.optimizer_offload else weights | self._optimizer(stage)

    def host(self, stage: int) -> dict[str, int]:
        """Bytes of what stays in main memory."""
        return self._optimizer(stage) if self.is_trained and self.config.optimizer_offload else {}

    def _optimizer(self, stage: int) -> dict[str, int]:
        number = self.optimized(stage)
        copies = {COPIES: 4 * number} if self.width < 4 else {}
        return {**copies, MOMENTS: 2 * max(self.width, 4) * number}

    def transient(self, stage: int) -> dict[str, dict[str, int]]:
        tensors = [size * self.width for size in _tensors(self.causal, self.sizes)]
        bucket = max(*tensors, min(BUCKET, sum(tensors)))
        phases = {
            "scoring": {"temporary tensors of a layer": self._temporary()},
            "weight sync": {"bucket of weights": bucket + max(tensors)},
        }
        if self.is_trained:
            phases["training"] = self._training(stage)
            on_device = 0 if self.config.optimizer_offload else self.optimized(stage)
            phases["optimizer"] = {"temporary tensors of AdamW": max(self.width, 4) * on_device}
        return phases

    def _training(self, stage: int) -> dict[str, int]:
        mesh, rows, parts = self.config.mesh, *self._microbatch()
        number = min(mesh.pipeline - stage, parts)
        length, width, recompute = self.workload.row_tokens, self.width, self.config.recompute
        layers = [layer for layer in range(self.sizes.layers) if self._stage(layer) == stage]
        inputs = len(layers) * rows * length * self.sizes.hidden * width // (mesh.context * positions(mesh))
        of_scores = scores(self.sizes, mesh, rows, length, width)
        options = {"is_selective": recompute == "selective"}
        each = [
            kept(self.sizes, mesh, rows * length, width, has_experts=self.sizes.moe_layers[layer], **options)
            for layer in layers
        ]
        stored, again = {
            "none": (sum(each) + len(layers) * of_scores, 0),
            "selective": (sum(each), of_scores),
            "layers": (inputs, max(each) + of_scores),
        }[recompute]
        name = "1 micro-batch" if number == 1 else f"{number} micro-batches"
        of_layer = {"activations that are computed again": again, "temporary tensors of a layer": self._temporary()}
        of_head = {"logits and gradient of the head": self._logits(stage, rows)}
        later = max(of_layer, of_head, key=lambda sizes: sum(sizes.values()))  # the head is done before the layers
        return {f"activations of {name}": number * stored, **later}

    def _temporary(self) -> int:
        rows, _ = self._microbatch()
        return temporary(self.sizes, self.config.mesh, rows, self.workload.row_tokens, self.width)

    def _logits(self, stage: int, rows: int) -> int:
        if stage < self.config.mesh.pipeline - 1 or not _has_vocabulary(self.outputs):
            return 0
        tokens = min(self.workload.completion_tokens, -(-self.workload.row_tokens // self.config.mesh.context))
        return logits(self.sizes, self.config.mesh, rows * tokens, self.width)

    def _stage(self, layer: int) -> int:
        return layer * self.config.mesh.pipeline // self.sizes.layers

    def _microbatch(self) -> tuple[int, int]:
        """Rows of the largest micro-batch, and the number of micro-batches of a step on a data rank."""
        workload, data = self.workload, self.config.mesh.data(self.workload.ranks)
        of_rank = -(-workload.rows // (workload.minibatches * data))
        rows = min(of_rank, self.config.budget.rows(workload.row_tokens))
        return rows, -(-of_rank // rows)


# --- parameters ----------------------------------------------------------------------------------------------------


def parameters_of_stage(causal: Any, mesh: MegatronMesh, stage: int, outputs: Sequence[str]) -> Count:
    """The parameters of a rank of `stage` (from 0) that has a part of transformers' model `causal`.

    A tied output head is one parameter with the embedding in a stage that has both, and a copy in another one. The rows
    of both are padded to a multiple of the tensor ranks.
    """
    shared = experts = 0
    for name, size, of_stage in _parameters(causal, mesh, outputs):
        if of_stage != stage:
            continue
        if ".experts." in name:
            experts += -(-size // (mesh.expert * mesh.expert_tensor))
        else:
            shared += size if _WHOLE.search(name) else -(-size // mesh.tensor)
    if stage == mesh.pipeline - 1:
        shared += sum(causal.config.hidden_size + 1 for name in outputs if name in HEADS)
    return Count(shared, experts)


def _parameters(causal: Any, mesh: MegatronMesh, outputs: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """(name, elements, stage) of every parameter, as a layout divides them."""
    embedding, head = causal.get_input_embeddings().weight, causal.get_output_embeddings().weight
    last, layers = mesh.pipeline - 1, causal.config.num_hidden_layers
    rows = -(-len(embedding) // mesh.tensor) * mesh.tensor
    yield "embedding", rows * embedding.shape[1], 0
    if _has_vocabulary(outputs) and (head is not embedding or last > 0):
        yield "head", rows * embedding.shape[1], last
    for name, parameter in causal.named_parameters():
        if parameter is not embedding and parameter is not head:
            layer = _LAYER.search(name)
            yield name, parameter.numel(), int(layer[1]) * mesh.pipeline // layers if layer else last


def _has_vocabulary(outputs: Sequence[str]) -> bool:
    return any(name not in HEADS for name in outputs)


def _tensors(causal: Any, sizes: Sizes) -> Iterator[int]:
    """Elements of each tensor of the files, in which every expert has its own."""
    for name, parameter in causal.named_parameters():
        yield parameter.numel() // (sizes.experts if ".experts." in name and parameter.ndim == 3 else 1)
