"""AdamW by Megatron-core, on one rank or divided among the data ranks, or on the CPU; and the norm of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from purerl.backends.megatron.mesh import current_device
from purerl.backends.megatron.offload import HostAdamW

if TYPE_CHECKING:
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.models.gpt import GPTModel

    from purerl.backends.megatron.settings import TrainerConfig

# pyright: reportMissingImports=false

__all__ = ["build_optimizer", "clip_gradients", "is_divided", "parts_of", "reload_weights", "set_learning_rate", "wrap"]


def wrap(model: GPTModel, config: TrainerConfig) -> DistributedDataParallel:
    """`model` with buffers for its gradients, which are summed over the data ranks after the last micro-batch.

    Gradients of bfloat16 weights are summed in float32.
    """
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    dtype = model.config.params_dtype
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=dtype == torch.bfloat16,
        use_distributed_optimizer=config.distributed_optimizer,
        overlap_grad_reduce=False,
        check_for_nan_in_grad=False,
        average_in_collective=False,
    )
    model.config.finalize_model_grads_func = _sum_gradients
    return DistributedDataParallel(model.config, settings, model)


def _sum_gradients(model: list[Any], num_tokens: Tensor | None, **options: Any) -> None:
    """Megatron's sums of gradients over ranks, without its division by a number of tokens."""
    from megatron.core.distributed import finalize_model_grads

    finalize_model_grads(model, None, **options)


def build_optimizer(module: DistributedDataParallel, config: TrainerConfig) -> Any:
    """AdamW of the parameters of `module`. Only weight matrices decay, and no embeddings, as in the hf trainer."""
    from megatron.core.optimizer import OptimizerConfig, ParamKey, ParamPredicate, get_megatron_optimizer

    dtype = module.config.params_dtype
    settings = OptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        bf16=dtype == torch.bfloat16 and not config.optimizer_offload,
        params_dtype=dtype,
        use_distributed_optimizer=config.distributed_optimizer,
        clip_grad=0.0,
    )
    # Megatron then makes no copies of bfloat16 weights, and gradients, which are in float32, are `decoupled_grad`.
    settings.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = config.optimizer_offload
    is_tied = module.module.share_embeddings_and_output_weights
    names = ("*word_embeddings.weight", *(["*output_layer.weight"] if is_tied else []))
    no_decay = ParamKey(name=names, predicate=ParamPredicate("is a vector", lambda parameter: parameter.ndim < 2))
    optimizer = get_megatron_optimizer(
        settings, [module], config_overrides={no_decay: {"wd_mult": 0.0}}, use_gloo_process_groups=False
    )
    set_learning_rate(optimizer, config.lr)
    _initialize_state(optimizer, is_offloaded=config.optimizer_offload)
    return optimizer


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers in a chain: that of experts, and that of the other parameters."""
    return getattr(optimizer, "chained_optimizers", [optimizer])


def is_divided(part: Any) -> bool:
    """Whether the optimizer `part` is divided among data ranks."""
    from megatron.core.optimizer import DistributedOptimizer

    return isinstance(part, DistributedOptimizer)


def _initialize_state(optimizer: Any, *, is_offloaded: bool) -> None:
    """Create the moments, so that a checkpoint before the first step has them too."""
    for part in parts_of(optimizer):
        if part.optimizer is None or part.init_state_fn is None:
            continue
        if is_offloaded:
            part.optimizer = HostAdamW(part.optimizer.param_groups)
            continue
        part.init_state_fn(part.optimizer, part.config)
        if isinstance(part.optimizer, torch.optim.AdamW):  # TransformerEngine's and Apex's count in their groups
            for state in part.optimizer.state.values():
                state.setdefault("step", torch.zeros(()))


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Set the learning rate, and the decay of each group from Megatron's factor of it."""
    for part in parts_of(optimizer):
        for group in part.param_groups:
            group["lr"], group["weight_decay"] = rate, part.config.weight_decay * group["wd_mult"]


def clip_gradients(optimizer: Any, max_norm: float) -> float:
    """Scale the gradients down to a norm of `max_norm` if it is larger; return the norm before. Collective.

        norm = sqrt(sum of g^2 over all parameters, each counted once)

    The experts have a group of ranks of their own, in which their sum is added up.
    """
    for part in parts_of(optimizer):
        _prepare_gradients(part)
    square = sum(_square(part) for part in parts_of(optimizer))
    norm = float(square) ** 0.5
    scale = max_norm / (norm + 1e-6)
    if scale < 1:
        for gradient in _gradients(optimizer):
            gradient.mul_(scale)
    return norm


def _prepare_gradients(part: Any) -> None:
    """Let the weights of the optimizer have their summed gradients, which stay on their device."""
    if not isinstance(part.optimizer, HostAdamW) or is_divided(part):
        part.prepare_grads()
        return
    for weight in part.get_parameters():  # torch refuses a `grad` in float32 of a weight in bfloat16
        weight.decoupled_grad = weight.main_grad


def _square(part: Any) -> Tensor:
    """The sum of the squares of the gradients of one optimizer, over the ranks that share them."""
    gradients = part.get_main_grads_for_grad_norm()
    square = torch.zeros((), dtype=torch.float64, device=current_device())
    for gradient in gradients:
        square += torch.linalg.vector_norm(gradient).double() ** 2
    dist.all_reduce(square, group=part.get_grad_stats_parallel_group())
    return square


def _gradients(optimizer: Any) -> Iterator[Tensor]:
    for part in parts_of(optimizer):
        name = "decoupled_grad" if isinstance(part.optimizer, HostAdamW) else "grad"
        gradients = (getattr(parameter, name, None) for parameter in part.get_parameters())
        yield from (gradient for gradient in gradients if gradient is not None)


def reload_weights(optimizer: Any) -> None:
    """Copy weights that were replaced into the copies that the optimizer has."""
    for part in parts_of(optimizer):
        part.reload_model_params()
        if isinstance(part.optimizer, HostAdamW):
            part.optimizer.reload()
