"""AdamW, and the norm of its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor

__all__ = [
    "OPTIMIZER",
    "adamw",
    "clear_gradients",
    "clip_gradients",
    "moments_like",
    "moments_of",
    "set_moments",
]

OPTIMIZER = "optimizer."
"""What the names of AdamW's state in a checkpoint begin with."""

_STEP = f"{OPTIMIZER}step"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over the parameters of `model` that require a gradient.

    Only weight matrices decay. Weights of norms and biases may be far from 0. A row of an embedding has a gradient
    only if its token occurs, but would decay in every step, so the embeddings of rare tokens would shrink. A tied
    output head is the embedding, and does not decay either.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.ndim > 1 and id(p) not in embeddings]
    no_decay = [p for p in trained if p.ndim <= 1 or id(p) in embeddings]
    groups = [
        {"params": [p for p in parameters if isinstance(p, DTensor) is is_divided], "weight_decay": rate}
        for parameters, rate in ((decay, weight_decay), (no_decay, 0.0))
        for is_divided in (False, True)  # the fused kernel takes only one kind
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, eps=eps, fused=True)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients of `parameters` down to a norm of `max_norm` if it is larger; return the norm before.

    The norm is that of all gradients together, each counted once. It is collective if they are split over ranks. A
    gradient that is split twice and one that is split once are on different meshes, which torch does not combine.
    """
    groups: dict[Any, list[Tensor]] = {}
    for p in parameters:
        groups.setdefault((p.device_mesh, p.placements) if isinstance(p, DTensor) else None, []).append(p)
    norm = nn.utils.get_total_norm([_norm([p.grad for p in group]) for group in groups.values()])
    for group in groups.values():
        nn.utils.clip_grads_with_norm_(group, max_norm, norm)
    return float(norm)


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of `gradients`, which are plain tensors, or split over the same ranks in the same way."""
    first = gradients[0]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    if not isinstance(first, DTensor):
        return nn.utils.get_total_norm(local)
    square = nn.utils.get_total_norm(local).square()
    for dimension, placement in enumerate(first.placements):
        if not placement.is_replicate():
            dist.all_reduce(square, group=first.device_mesh.get_group(dimension))
    return square.sqrt()


def clear_gradients(parameters: Iterable[Tensor]) -> None:
    """Set every gradient to 0, and create it if it does not exist.

    A parameter that no row of a step uses then has a gradient of 0, for any split into micro-batches.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()


# --- its state in a checkpoint -------------------------------------------------------------------------------------


def moments_of(optimizer: torch.optim.AdamW | None, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of `optimizer` by the names of the parameters `trained`; empty if it has taken no step.

    All parameters have taken the same number of steps, because each has a gradient in every step.
    """
    if optimizer is None or not optimizer.state:
        return {}
    states = {name: optimizer.state[parameter] for name, parameter in trained.items()}
    moments = {_key(kind, name): state[kind] for name, state in states.items() for kind in _MOMENTS}
    return {_STEP: next(iter(states.values()))["step"].cpu(), **moments}


def moments_like(trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with the names, shapes and dtypes of what `moments_of` returns after a step."""
    moments = {_key(kind, name): parameter.detach() for name, parameter in trained.items() for kind in _MOMENTS}
    return {_STEP: torch.zeros(()), **moments}


def set_moments(optimizer: torch.optim.AdamW, trained: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> None:
    """Let `optimizer` continue from what `moments_of` returned, which is in `loaded`."""
    optimizer.state.clear()
    for name, parameter in trained.items() if _STEP in loaded else ():
        step = loaded[_STEP].to(parameter.device, copy=True)
        optimizer.state[parameter] = {"step": step, **{kind: loaded[_key(kind, name)] for kind in _MOMENTS}}


def _key(kind: str, name: str) -> str:
    return f"{OPTIMIZER}{kind}.{name}"
