"""Parallelism and memory savings, applied to a `TokenModel` from outside and in a fixed order.

1. packing               attention within the rows of a pack (`packed_attention.py`)
2. sequence parallelism  attention exchanges heads for positions (`sequence.py`)
3. compilation           of each layer by torch.compile
4. routes                routers record and replay their choices (`moe/replay.py`)
5. recomputation         of activations in the backward pass
6. sharding              of each layer and the rest by FSDP2's fully_shard

Tensor parallelism comes before all of them: transformers applies its plan for the model, before weights are loaded
(`load.py`). Later steps wrap earlier ones. Recomputation inside of compiled code fails in torch 2.13 if shapes change,
so it repeats the whole compiled layer. Shards are gathered outside of compiled code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.mesh import RankMesh
from purerl.system.process import keep_compiled_code_private

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from purerl.backends.hf.model.token_model import TokenModel
    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["fsdp_parts", "parallelize", "restore_shards", "sum_undivided"]

_MULTIPLE = 64
"""Compiled layers read multiples of this number of tokens, so that there are few shapes to compile for."""

_KEPT = frozenset(
    {
        "aten.mm.default",
        "aten.addmm.default",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
        "torch_attn._varlen_attn.default",
        "_c10d_functional.all_to_all_single.default",
    }
)
"""Operations whose results selective recomputation keeps: matrix products, attention and its exchange."""


def parallelize(
    module: TokenModel, config: TrainerConfig, mesh: RankMesh, whole: Collection[nn.Parameter] = ()
) -> None:
    """Apply to `module` what `config` sets. Weights may still be on the meta device.

    whole  parameters that every rank has, whatever the mesh is
    """
    layers = list(layers_of(module))
    # Compiled layers and FSDP2 expect the parameters themselves.
    module.adds_early = not config.compile and mesh.parameters is None
    if config.packing:
        module.pack_rows()
    if mesh.sequence is not None:
        module.split_sequences(mesh.sequence)
    if config.compile:
        keep_compiled_code_private()
        module.multiple_of = _MULTIPLE
        for layer in layers_of(module.decoder):  # images have many sizes, and a vision tower would compile for each
            layer.forward = torch.compile(layer.forward)
    if config.replay_routes != "off":
        module.replay_routes()
    if config.recompute != "none":
        recompute(layers, is_selective=config.recompute == "selective")
    if mesh.parameters is not None:
        _shard(module, layers, config, mesh, whole)


def recompute(layers: Sequence[nn.Module], *, is_selective: bool) -> None:
    """Have every layer recompute its activations in the backward pass; if `is_selective`, the cheap ones only."""
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if is_selective:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for layer in layers:
        # Not by transformers' own switch, which works in training mode only, where dropout would be on.
        layer.forward = partial(checkpoint, layer.forward, **options)


def _policy(context: object, operation: object, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if str(operation) in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


# --- sharding ------------------------------------------------------------------------------------------------------


def _shard(
    module: TokenModel,
    layers: Sequence[nn.Module],
    config: TrainerConfig,
    mesh: RankMesh,
    whole: Collection[nn.Parameter],
) -> None:
    """Shard each layer, and then the rest of `module`, over the ranks of `mesh.parameters`, except `whole`.

    Gradients are summed, by a plain sum, which every backend of torch.distributed has; FSDP2 would average them. 16-bit
    gradients are summed in float32. Parameters are gathered in their own dtype: autocast, not FSDP2, casts them, so
    that mixed precision has the same rules with and without sharding.

    FSDP2 divides numbers of one dtype. Every rank has all parameters of another one than that of the model, which are
    few: heads, and routers that transformers keeps in float32.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    dtype = module.model.dtype
    options: dict[str, Any] = {
        "mesh": mesh.parameters,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32 if dtype.itemsize < 4 else None),
        "ignored_params": {*whole} | {parameter for parameter in module.parameters() if parameter.dtype != dtype},
    }
    if config.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device.type != "cpu")
    for layer in layers:
        fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **options)
    fully_shard(module, **options)
    register_fsdp_forward_method(module, "gathered")
    for part in fsdp_parts(module):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def fsdp_parts(module: nn.Module) -> Sequence[FSDPModule]:
    """The parts of `module` that `fully_shard` was called on."""
    from torch.distributed.fsdp import FSDPModule

    return tuple(part for part in module.modules() if isinstance(part, FSDPModule))


def sum_undivided(parameters: Iterable[nn.Parameter], mesh: RankMesh) -> None:
    """Sum the gradients of those of `parameters` that FSDP2 has not divided, and so has not summed, over all ranks.

    Ranks that read other rows or positions have other parts of them. Ranks that split matrices have the same part.
    """
    gradients = [p.grad for p in parameters if not isinstance(p, DTensor) and p.grad is not None]
    copies = 1 if mesh.tensor is None else mesh.tensor.size()
    mesh.all.sum_in_place([gradient.div_(copies) for gradient in gradients] if copies > 1 else gradients)


def restore_shards(parts: Sequence[FSDPModule]) -> None:
    """Free the full copies, so that the parameters of `parts` are their shards again.

    After a forward pass without gradient, the outermost part keeps full copies of its parameters: the module shows the
    copies instead of the shards until the next backward pass.
    """
    for part in parts:
        part.reshard()
