"""AdamW, its learning rate over a run, and the norm of its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["LRScheduler", "adamw", "clear_gradients", "learning_rate"]

LRScheduler = Literal["constant", "linear", "cosine"]


def adamw(
    model: nn.Module, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over the parameters of `model` that require a gradient.

    Only weight matrices decay. A norm's weight, a bias and a shift are no worse for being far from 0. The rows of an
    embedding get a gradient only when their token occurs, while the decay would come with every step: rare tokens would
    fade. (An output head that is tied to the embedding is the embedding, and does not decay either.)
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = [p for p in trained if p.ndim > 1 and id(p) not in embeddings]
    others = [p for p in trained if p.ndim <= 1 or id(p) in embeddings]
    groups = [{"params": decays, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def learning_rate(
    position: int, *, lr: float, schedule: LRScheduler, warmup_steps: int, min_lr_ratio: float, updates: int
) -> float:
    """The learning rate of optimizer step `position` (from 0) of `updates`.

        rate = lr * (position + 1) / warmup_steps                                     position < warmup_steps
        rate = lr * (min_lr_ratio + (1 - min_lr_ratio) * decay(progress))    otherwise
        progress = (position - warmup_steps) / (updates - warmup_steps), at most 1

    decay(x) is 1 ("constant"), 1 - x ("linear") or (1 + cos(pi x)) / 2 ("cosine"). Neither the first nor the last step
    of a run is lost: the warm-up begins above 0, and progress reaches 1 only one step after the last.

    >>> [learning_rate(k, lr=1.0, schedule="linear", warmup_steps=2, min_lr_ratio=0.0, updates=4) for k in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if position < warmup_steps:
        return lr * (position + 1) / warmup_steps
    progress = min(1.0, (position - warmup_steps) / max(1, updates - warmup_steps))
    decay = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[schedule]
    return lr * (min_lr_ratio + (1 - min_lr_ratio) * decay)


def clear_gradients(parameters: Iterable[Tensor]) -> None:
    """Set every gradient to 0, and make it where there is none.

    A parameter that no row of a step uses then has a gradient of 0, and is treated alike however the step was cut.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()
