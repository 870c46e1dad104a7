"""The auxiliary loss of mixture-of-experts models, which keeps the load of their experts balanced.

    f_e  = (choices of expert e at all tokens and layers) / (tokens * layers)
    P_e  = mean router probability of expert e over all tokens and layers
    loss = coefficient * experts * sum_e f_e P_e

f has no gradient. Both are means over the whole optimizer step: over all micro-batches and ranks. So f is counted
first, in one more forward pass of every micro-batch. The tokens are those from which action tokens are predicted.
transformers has the same formula for each forward pass, over all tokens.

Reference: Fedus et al., "Switch Transformers" (2021), equations 4 to 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purerl.settings import no_effect

__all__ = ["LOAD", "balance_loss", "coefficient_of", "load_of"]

LOAD = ("router_count", "router_probability")
"""Sums over tokens and layers, [experts] each: choices, and probabilities."""


def coefficient_of(setting: float | None, config: Any) -> float:
    """The coefficient of a model with this `config` of transformers; 0 without experts.

    Without a `setting` it is the model's own, if the model asks for the loss by `output_router_logits`.

    Raises: ConfigError for a setting above 0 if transformers has no such loss for the model.
    """
    text = config.get_text_config(decoder=True)
    own = getattr(text, "router_aux_loss_coef", None)
    if setting is None:
        return (own or 0.0) if getattr(text, "output_router_logits", False) else 0.0
    if setting and own is None:
        raise no_effect("router_aux_loss_coef", setting, "a mixture-of-experts model with an auxiliary loss")
    return setting


def load_of(logits: Sequence[Tensor], top_k: int) -> dict[str, Tensor]:
    """The `LOAD` of n tokens; `logits` [n, experts] for each layer, `top_k` choices of each token."""
    probability = torch.stack(tuple(logits)).float().softmax(-1)
    choices = probability.topk(top_k, -1).indices
    count = torch.zeros_like(probability, requires_grad=False).scatter_(-1, choices, 1.0)
    return {"router_count": count.sum((0, 1)).detach(), "router_probability": probability.sum((0, 1))}


def balance_loss(count: Tensor, probability: Tensor, top_k: int) -> Tensor:
    """The loss without its coefficient; every token makes `top_k` choices in each layer. It is 0 without tokens."""
    reads = (count.sum() / top_k).clamp(min=1)  # tokens * layers
    return len(count) * (count * probability).sum() / reads**2
