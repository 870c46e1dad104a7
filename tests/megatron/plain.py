"""The supported models, written plainly from their weights under the names in Hugging Face's files.

It shares no code with transformers or megatron-core. Like both, it computes rotary angles and the softmax of routers in
float32, and everything else in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from purerl.backends.megatron.shape import Shape

__all__ = ["logits", "routes"]

NO_ROUTES: Mapping[int, Tensor] = MappingProxyType({})


def logits(
    shape: Shape,
    weights: Mapping[str, Tensor],
    tokens: Tensor,
    replayed: Mapping[int, Tensor] = NO_ROUTES,
    live: dict[int, Tensor] | None = None,
) -> Tensor:
    """[rows, time, vocabulary] for `tokens` [rows, time].

    replayed  by layer, [rows, time, k] the experts to use; -1, and without an entry: those of the router
    live      what the router of each layer chooses is written here
    """
    live = {} if live is None else live
    hidden = functional.embedding(tokens, weights["model.embed_tokens.weight"])
    for layer in range(shape.layers):
        own = {name.removeprefix(f"model.layers.{layer}."): value for name, value in weights.items()}
        normed = _norm(hidden, own["input_layernorm.weight"], shape)
        hidden = hidden + _attention(shape, own, normed)
        normed = _norm(hidden, own["post_attention_layernorm.weight"], shape)
        if shape.moe_layers[layer]:
            output, live[layer] = _experts(shape, own, normed, replayed.get(layer))
        else:
            output = _mlp(own, "mlp", normed)
        hidden = hidden + output
    head = weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"]
    return _norm(hidden, weights["model.norm.weight"], shape) @ head.T


def routes(shape: Shape, weights: Mapping[str, Tensor], tokens: Tensor) -> dict[int, Tensor]:
    """By layer, [rows, time, k] the experts of each token."""
    live: dict[int, Tensor] = {}
    logits(shape, weights, tokens, live=live)
    return live


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + shape.norm_eps) * weight


def _attention(shape: Shape, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    def project(name: str, heads: int) -> Tensor:
        y = functional.linear(x, weights[f"self_attn.{name}_proj.weight"], weights.get(f"self_attn.{name}_proj.bias"))
        y = y.unflatten(-1, (heads, shape.head_dim)).transpose(1, 2)  # [rows, heads, time, head_dim]
        return _norm(y, weights[f"self_attn.{name}_norm.weight"], shape) if shape.qk_norm and name != "v" else y

    q, k, v = project("q", shape.heads), project("k", shape.key_heads), project("v", shape.key_heads)
    q, k = _rotate(shape, q), _rotate(shape, k)
    k, v = (each.repeat_interleave(shape.heads // shape.key_heads, 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / shape.head_dim**0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2) @ weights["self_attn.o_proj.weight"].T


def _rotate(shape: Shape, x: Tensor) -> Tensor:
    frequency = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angle = torch.arange(x.shape[2]).float()[:, None] * frequency
    cos, sin = (torch.cat((each, each), -1).to(x.dtype) for each in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _mlp(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    gate, up, down = (weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def _experts(shape: Shape, weights: Mapping[str, Tensor], x: Tensor, replayed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output of a layer, and the choice of its router."""
    probability = (x @ weights["mlp.gate.weight"].T).float().softmax(-1).to(x.dtype)
    live = probability.topk(shape.top_k, -1).indices
    chosen = live if replayed is None else torch.where(replayed < 0, live, replayed)
    top = probability.gather(-1, chosen)
    top = top / top.sum(-1, keepdim=True) if shape.normalize_top_k else top
    share = torch.zeros_like(probability).scatter(-1, chosen, top)
    outputs = [share[..., e, None] * _mlp(weights, f"mlp.experts.{e}", x) for e in range(shape.experts)]
    return torch.stack(outputs).sum(0), live
