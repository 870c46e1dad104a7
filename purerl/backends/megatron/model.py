"""A model of Megatron-core whose last stage returns hidden states, with the heads that a trainer needs.

The layers are Megatron's local ones, or those of TransformerEngine where it is installed. Local layers have norms that
are written here: Megatron's own refuse to work on a part of each sequence, and so to train experts with tensor
parallelism.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from purerl.backends.hf.decoder.architecture import CLASSIFIER_SCORE
from purerl.backends.hf.model.token_model import HEADS
from purerl.backends.megatron.context import split_angles, split_attention
from purerl.backends.megatron.mesh import Groups, MegatronMesh, current_device
from purerl.backends.megatron.names import Weight
from purerl.backends.megatron.shape import Shape

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

# pyright: reportMissingImports=false

__all__ = ["build_model", "has_vocabulary", "mark_split", "named_parameters"]


class _Norm(nn.RMSNorm):
    """RMSNorm whose gradient Megatron sums over the ranks that have other positions.

        y = x / sqrt(mean(x^2) + eps) * weight

    The arguments are those with which Megatron builds a norm. In 16 bits, torch computes it in float32.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **others: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]


def build_model(
    shape: Shape, mesh: MegatronMesh, groups: Groups, *, dtype: torch.dtype, recompute: str, outputs: Sequence[str]
) -> GPTModel:
    """The part of this rank of a model of `shape`, with undefined weights, and the heads of those of `outputs`.

    Its last stage returns hidden states [time, rows, hidden], without their product with the output head. Without an
    output of the vocabulary it has no output head.
    """
    from megatron.core.models.gpt import GPTModel

    config = transformer_config(shape, mesh, dtype=dtype, recompute=recompute)
    stage = groups.pipeline.rank()
    model = GPTModel(
        config,
        _layers(config, groups),
        -(-shape.vocab_size // mesh.tensor) * mesh.tensor,  # each tensor rank has as many rows as the others
        shape.max_sequence_length,
        pre_process=stage == 0,
        post_process=groups.is_last_stage,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,
        rope_scaling=shape.rope_factor is not None,
        rope_scaling_factor=shape.rope_factor or 1.0,
        share_embeddings_and_output_weights=shape.tied and has_vocabulary(outputs),
    )
    model._postprocess = _hidden_states  # noqa: SLF001 - nothing public is between the layers and the head
    split_angles(model, groups.context)
    if groups.is_last_stage and not has_vocabulary(outputs):
        model.output_layer = None
    if groups.is_last_stage:
        model.heads = nn.ModuleDict(
            {
                name: nn.Linear(shape.hidden, 1, bias=name in HEADS, dtype=dtype, device=groups.device)
                for name in outputs
                if name in (*HEADS, CLASSIFIER_SCORE)
            }
        )
    return model


def _hidden_states(hidden_states: Tensor, **others: Any) -> Tensor:
    return hidden_states


def has_vocabulary(outputs: Sequence[str]) -> bool:
    """Whether one of `outputs` comes from the distribution of the next token."""
    return any(name not in (*HEADS, CLASSIFIER_SCORE) for name in outputs)


def transformer_config(shape: Shape, mesh: MegatronMesh, *, dtype: torch.dtype, recompute: str) -> TransformerConfig:
    """Megatron's configuration of a model of `shape`.

    `calculate_per_token_loss` switches off what Megatron divides by: the number of micro-batches and of data ranks.
    """
    from megatron.core.transformer import TransformerConfig

    experts: dict[str, Any] = {
        "num_moe_experts": shape.experts,
        "moe_router_topk": shape.top_k,
        "moe_ffn_hidden_size": shape.expert_ffn,
        "moe_layer_freq": [int(has_experts) for has_experts in shape.moe_layers],
        "moe_router_pre_softmax": not shape.normalize_top_k,
        "moe_router_load_balancing_type": "none",
    }
    layers = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    memory = {"none": {}, "layers": layers, "selective": {"recompute_granularity": "selective"}}
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.key_heads,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.ffn,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        perform_initialization=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=mesh.tensor,
        context_parallel_size=mesh.context,
        pipeline_model_parallel_size=mesh.pipeline,
        expert_model_parallel_size=mesh.expert,
        expert_tensor_parallel_size=mesh.expert_tensor,
        sequence_parallel=mesh.sequence_parallel,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,
        **(experts if shape.experts else {}),
        **memory[recompute],
    )


def _layers(config: TransformerConfig, groups: Groups) -> TransformerBlockSubmodules:
    """Megatron's specification of the layers of this stage, with attention that context ranks divide."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    has_engine = find_spec("transformer_engine") is not None
    block = get_gpt_decoder_block_spec(config, has_engine, normalization="RMSNorm")
    attentions = [layer.submodules.self_attention.submodules for layer in block.layer_specs]
    if config.context_parallel_size > 1:
        for attention in {id(each): each for each in attentions}.values():  # layers share them
            attention.core_attention = split_attention(attention.core_attention, groups)
    if has_engine:
        return block
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = _Norm
        if config.qk_layernorm:
            attention = layer.submodules.self_attention.submodules
            attention.q_layernorm = attention.k_layernorm = _Norm
    block.layer_norm = _Norm
    return block


def named_parameters(model: GPTModel, mesh: MegatronMesh, groups: Groups) -> dict[str, nn.Parameter]:
    """The parameters of `model` by the names in `names.py`: with the numbers of layers and experts in the whole model.

    TransformerEngine holds the norm before a matrix beside the matrix.
    """
    config = model.config
    first = groups.pipeline.rank() * (config.num_layers // mesh.pipeline)
    expert = groups.expert.rank() * ((config.num_moe_experts or 0) // mesh.expert)
    names = {}
    for name, parameter in model.named_parameters():
        name = re.sub(r"(?<=decoder\.layers\.)\d+", lambda number: str(int(number[0]) + first), name)
        name = re.sub(r"(?<=local_experts\.)\d+", lambda number: str(int(number[0]) + expert), name)
        name = name.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight")
        names[name.replace("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight")] = parameter
    return names


def mark_split(parameters: Mapping[str, Any], table: Iterable[Weight]) -> None:
    """Mark the `parameters` that are split among the tensor ranks, as Megatron does when it initializes weights.

    Its norm of gradients counts the others on one of these ranks only.
    """
    for weight in table:
        if weight.axis is not None and weight.parameter in parameters:
            parameters[weight.parameter].tensor_model_parallel = True
