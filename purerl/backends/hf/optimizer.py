"""AdamW, and its learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["adamw", "clear_gradients", "learning_rate"]


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
    groups = [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def learning_rate(
    position: int, *, lr: float, lr_scheduler: str, warmup_steps: int, min_lr_ratio: float, updates: int
) -> float:
    """The learning rate of optimizer step `position` (from 0) of `updates`.

        rate     = lr * (position + 1) / warmup_steps                           if position < warmup_steps
        rate     = lr * (min_lr_ratio + (1 - min_lr_ratio) * decay(progress))   otherwise
        progress = (position - warmup_steps) / (updates - warmup_steps), at most 1

    decay(x) is 1 ("constant"), 1 - x ("linear") or (1 + cos(pi x)) / 2 ("cosine"). The progress of the last step is
    less than 1, so every step of the run has a learning rate above 0.

    >>> [learning_rate(k, lr=1.0, lr_scheduler="linear", warmup_steps=2, min_lr_ratio=0.0, updates=4) for k in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if position < warmup_steps:
        return lr * (position + 1) / warmup_steps
    progress = min(1.0, (position - warmup_steps) / max(1, updates - warmup_steps))
    decay = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}[lr_scheduler]
    return lr * (min_lr_ratio + (1 - min_lr_ratio) * decay)


def clear_gradients(parameters: Iterable[Tensor]) -> None:
    """Set every gradient to 0, and create it if it does not exist.

    A parameter that no row of a step uses then has a gradient of 0, for any split into micro-batches.
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad.zero_()
