"""The optimizer of a trainer, and the norm of its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from purerl.backends.hf.training.custom_optimizer import build_custom
from purerl.backends.hf.training.decay import matrices
from purerl.backends.hf.training.narrow_weights import NarrowAdamW, WideSteps, wide
from purerl.backends.hf.training.rounding import Rounding, is_narrow
from purerl.errors import ConfigError

if TYPE_CHECKING:
    from purerl.backends.hf.settings import TrainerConfig

__all__ = ["Combined", "build_optimizer", "clear_gradients", "clip_gradients", "release_gradients"]


class Combined:
    """Several optimizers of different parameters, as one. They share their state and their groups."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state = parts[0].state
        for part in parts[1:]:
            self.state.update(part.state)
            part.state = self.state

    def step(self) -> None:
        for part in self.parts:
            part.step()


def build_optimizer(model: nn.Module, config: TrainerConfig, rounding: Rounding) -> Any:
    """The optimizer of `config` for the parameters of `model` that require a gradient: one of torch, or several.

    Only weight matrices decay (`decay.py`), and only they are trained by an optimizer of matrices. Narrow weights are
    stored by `rounding`.

    Raises: ConfigError if an optimizer in `config.optimizer` refuses the parameters, or has none.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if config.optimizer is None:
        return _together(*_adamw(model, trained, config, rounding))
    if config.optimizer.parameters == "all":
        return _custom(model, trained, config, rounding)
    inside = matrices(model) - _heads(model)
    chosen = [p for p in trained if p.ndim == 2 and id(p) in inside]
    if not chosen:
        raise ConfigError("optimizer.parameters", got="a model without such matrices that are trained", need="some")
    rest = [p for p in trained if p.ndim != 2 or id(p) not in inside]
    return _together(_custom(model, chosen, config, rounding), *_adamw(model, rest, config, rounding))


def _together(*parts: Any) -> Any:
    return parts[0] if len(parts) == 1 else Combined(*parts)


def _adamw(
    model: nn.Module, parameters: Sequence[nn.Parameter], config: TrainerConfig, rounding: Rounding
) -> Iterator[torch.optim.AdamW]:
    """AdamW of `parameters`: one for those that are narrow, and one for the others."""
    settings = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    narrow = _groups(model, [p for p in parameters if is_narrow(p)], config.weight_decay)
    others = _groups(model, [p for p in parameters if not is_narrow(p)], config.weight_decay)
    if narrow:
        yield NarrowAdamW(narrow, rounding=rounding, **settings)
    if others:
        yield torch.optim.AdamW(others, **settings, fused=True)


def _custom(
    model: nn.Module, parameters: Sequence[nn.Parameter], config: TrainerConfig, rounding: Rounding
) -> Optimizer | WideSteps:
    """The optimizer in `config.optimizer`, which computes in float32."""
    narrow = {p: p.detach().float() for p in parameters if is_narrow(p)}
    with wide(narrow):
        optimizer = build_custom(_groups(model, parameters, config.weight_decay), config)
    return WideSteps(optimizer, rounding) if narrow else optimizer


def _groups(model: nn.Module, parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """`parameters` with those that decay apart from the others. A fused kernel takes only one kind of tensor."""
    decaying = matrices(model)
    decay = [p for p in parameters if id(p) in decaying]
    no_decay = [p for p in parameters if id(p) not in decaying]
    groups = [
        {"params": [p for p in same if isinstance(p, DTensor) is is_divided], "weight_decay": rate}
        for same, rate in ((decay, weight_decay), (no_decay, 0.0))
        for is_divided in (False, True)
    ]
    return [group for group in groups if group["params"]]


def _heads(model: nn.Module) -> set[int]:
    """Parameters that are no part of a layer: those outside of all lists of modules, such as output heads."""
    inside = {id(p) for m in model.modules() if isinstance(m, nn.ModuleList) for p in m.parameters()}
    return {id(p) for p in model.parameters()} - inside


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


def release_gradients(parameters: Iterable[Tensor]) -> None:
    """Free every gradient: its memory is for what other models, and the generator, do until the next step."""
    for parameter in parameters:
        parameter.grad = None


def clear_gradients(parameters: Iterable[Tensor]) -> None:
    """Set every gradient to 0, and create it if it does not exist.

    A parameter that no row of a step uses then has a gradient of 0, for any split into micro-batches.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()
