"""Bytes of activations in a layer of Megatron-core on one rank, by formulas.

    h  hidden size              t  tensor ranks
    a  attention heads          p  t with sequence parallelism, otherwise 1
    k  key and value heads      b  bytes of an element
    q  width of queries, keys   c  b, and 4 in 16 bits: norms, scores and probabilities are in float32
    v  width of values          f  rows of an MLP, and g of an expert
    E  experts                  K  choices of a token, of which each rank that splits an expert has all

What the backward pass needs of a layer, in bytes for each token, of which each context rank has an equal part:

    attention   2 c h / p                            its norm: input, and normalized input
                b h / p                              the product of the norm with its weight
                2 c (a + k) q / t                    norms of queries and keys, where there are any
                b a (2 q + 2 v) / t                  queries, repeated keys and values, attended values
    MLP         (2 c + b) h / p                      its norm, as above
                5 b f / t                            both halves, the activated one, a copy of the other, their product
    experts     (2 c + b) h / p                      in place of an MLP
                K b (h + 6 g) / p                    tokens sorted by experts; an MLP, times a probability
                ((5 + b) E + 16 K) / p               the router: probabilities, masks, indices
                5 b f / t                            experts that every token goes through, where there are any

    scores      c s a / t, and 2 s a / t in 16 bits  of a row of s tokens: probabilities, rounded ones
                                                     (context ranks have equal parts of the heads of these)
    selective   no scores, and b (a q + k q + k v + a v) / t for queries, keys and values

Keys and values that are neither repeated nor sent to context ranks are parts of one tensor with the queries, which
stays: b a (q + v) / t more.
Latent attention (DeepSeek-AI 2024, DeepSeek-V2, 2405.04434) also has, on every tensor rank, 2 (c + b) for each of the
elements between its projections: those, normalized ones, and the two numbers of their norms.

Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (2205.05198), count the layers
of GPT in this way. The layers here have gated MLPs, grouped keys, no dropout, and norms that are not fused. The counts
are those of the tensors that autograd saves in megatron-core 0.16.1 on a CPU; those of latent attention and of shared
experts are not compared with anything.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from purerl.backends.megatron.mesh import MegatronMesh
from purerl.kernels.logp import KEPT, fused

__all__ = ["Sizes", "kept", "logits", "positions", "scores", "sizes_of", "temporary"]


@frozen(kw_only=True)
class Sizes:
    """The sizes of a model of any architecture, as far as memory depends on them.

    norm_width   elements of a token that are normalized inside attention, and are divided among tensor ranks
    latent       elements of a token between the two projections of latent attention; 0 without it
    shared_ffn   rows of the MLP beside the experts, which every token goes through
    moe_layers   for each layer whether it has experts
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    query_width: int
    value_width: int
    norm_width: int
    latent: int
    ffn: int
    vocab_size: int
    experts: int
    expert_ffn: int
    shared_ffn: int
    top_k: int
    moe_layers: tuple[bool, ...]


def sizes_of(causal: Any) -> Sizes:
    """The sizes of a model of transformers, which may have no values."""
    config, layers = causal.config, causal.get_decoder().layers
    names = [[name for name, _ in layer.named_parameters()] for layer in layers]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    latent = getattr(config, "kv_lora_rank", None)
    has_norms = any(".q_norm." in name for name in names[0])
    of_experts = ("n_routed_experts", "num_experts", "num_local_experts")
    experts = next((number for name in of_experts if (number := getattr(config, name, None))), 0)
    expert_ffn = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return Sizes(
        layers=len(layers),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=key_heads,
        query_width=config.qk_head_dim if latent else width,
        value_width=config.v_head_dim if latent else width,
        norm_width=(config.num_attention_heads + key_heads) * width if has_norms else 0,
        latent=latent + config.qk_rope_head_dim + (config.q_lora_rank or 0) if latent else 0,
        ffn=config.intermediate_size,
        vocab_size=config.vocab_size,
        experts=experts,
        expert_ffn=expert_ffn,
        shared_ffn=expert_ffn * (getattr(config, "n_shared_experts", None) or 0),
        top_k=config.num_experts_per_tok if experts else 0,
        moe_layers=tuple(any(".experts." in name for name in of_layer) for of_layer in names),
    )


def kept(
    sizes: Sizes, mesh: MegatronMesh, tokens: int, width: int, *, has_experts: bool, is_selective: bool = False
) -> int:
    """Bytes of `tokens` tokens that the backward pass of a layer needs, without the scores of attention.

    width         bytes of an element
    is_selective  attention is computed again
    """
    wide, split, part = max(width, 4), mesh.tensor, positions(mesh)
    norms = 2 * (2 * wide + width) * sizes.hidden / part
    norms += 2 * wide * sizes.norm_width / split + (2 * wide + 2 * width) * sizes.latent
    mlp = 5 * width * (sizes.shared_ffn if has_experts else sizes.ffn) / split
    routed = sizes.top_k * (width * (sizes.hidden * mesh.expert_tensor + 6 * sizes.expert_ffn) + 16) / part
    routed += (5 + width) * sizes.experts / part
    each = norms + width * _attended(sizes, mesh, is_selective=is_selective) / split + mlp
    return round(tokens * (each + (routed if has_experts else 0)) / mesh.context)


def _attended(sizes: Sizes, mesh: MegatronMesh, *, is_selective: bool) -> int:
    """Elements of a token among queries, keys and values that the backward pass of attention needs, of all heads."""
    heads, keys, both = sizes.heads, sizes.key_heads, sizes.query_width + sizes.value_width
    if is_selective:
        return heads * both + keys * both
    return heads * 2 * both if heads > keys or mesh.context > 1 else heads * 3 * both


def scores(sizes: Sizes, mesh: MegatronMesh, rows: int, length: int, width: int) -> int:
    """Bytes of the scores of attention that the backward pass of a layer needs: of `rows` rows of `length` tokens."""
    pairs = rows * length**2 * -(-sizes.heads // (mesh.tensor * mesh.context))
    return pairs * (4 + width if width < 4 else width)


def temporary(sizes: Sizes, mesh: MegatronMesh, rows: int, length: int, width: int) -> int:
    """Bytes of what exists for a moment in the forward or backward pass of a layer, as an estimate.

    The largest of the scores of attention, the gradients of an MLP, and those of the tokens that experts get.
    """
    tokens, split, wide_ffn = rows * length // mesh.context, mesh.tensor, max(sizes.ffn, sizes.shared_ffn)
    mlp = tokens * (sizes.hidden + 4 * wide_ffn // split) + 2 * wide_ffn * sizes.hidden // split
    choices = tokens * sizes.top_k * mesh.expert_tensor // positions(mesh)
    routed = choices * (2 * sizes.hidden + 4 * sizes.expert_ffn // mesh.expert_tensor)
    return max(mlp * width, routed * width, scores(sizes, mesh, rows, length, width))


def logits(sizes: Sizes, mesh: MegatronMesh, tokens: int, width: int) -> int:
    """Bytes of the outputs at `tokens` action tokens on an accelerator, and of their backward pass.

    A chunk of logits in the dtype of the weights, the gradient of the output head and a summand of it in float32, and
    hidden states with their gradient. Few logits that are not divided are kept as a whole.
    """
    rows = -(-sizes.vocab_size // mesh.tensor)
    if mesh.tensor == 1 and tokens * rows <= KEPT:
        chunks = 4 * tokens * rows * max(width, 4)
    else:
        chunks = min(tokens, fused.chunk_size(rows)) * rows * width + 2 * max(width, 4) * rows * sizes.hidden
    return chunks + tokens * sizes.hidden * (width + max(width, 4))


def positions(mesh: MegatronMesh) -> int:
    """Ranks among which the positions between the matrices of a layer are divided."""
    return mesh.tensor if mesh.sequence_parallel else 1
