"""A small random model of every family of causal language models in transformers.

The settings of a family are those that all families share by name (`SIZES`), and a few of its own (`OWN`). A model has
one layer of each type that its family has. `SKIPPED` has the other families, with reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["FLOAT32", "OWN", "SIZES", "SKIPPED", "VOCAB_SIZE", "config_of", "families", "write_model"]

VOCAB_SIZE = 64

_NAMES: Mapping[int, str] = {
    32: "hidden_size d_model n_embd embedding_size word_embed_proj_dim input_embedding_size "
    "output_embedding_size lru_width pronunciation_embed_dim shape_embed_dim out_hidden_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers num_key_value_heads "
    "num_kv_heads swa_num_key_value_heads linear_num_key_heads num_experts_per_tok num_experts_per_token "
    "moe_topk moe_k depth hc_count temporal_patch_size spatial_merge_size",
    4: "num_attention_heads n_head n_heads num_heads swa_num_attention_heads attention_heads "
    "decoder_attention_heads num_decoder_attention_heads linear_num_value_heads linear_num_heads "
    "num_experts n_routed_experts num_local_experts moe_num_experts qk_rope_head_dim rotary_dim "
    "sliding_window swa_head_dim hidden_size_per_layer_input laurel_rank patch_size",
    8: "head_dim v_head_dim kv_channels dim_head d_head attention_head_size linear_key_head_dim "
    "linear_value_head_dim linear_head_dim index_head_dim qk_nope_head_dim kv_lora_rank q_lora_rank "
    "mamba_d_state state_size mamba_chunk_size chunk_size hc_lowrank router_hidden_size index_topk",
    16: "index_n_heads intermediate_size ffn_dim dff dim_ff ffn_hidden_size d_inner decoder_ffn_dim n_inner "
    "emb_dim moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
    "shared_experts_intermediate_size moe_shared_expert_intermediate_size expert_ffn_hidden_size "
    "intermediate_size_mlp dense_intermediate_size feed_forward_size image_size num_position_embeddings",
    VOCAB_SIZE: "vocab_size vocab_size_per_layer_input unpadded_vocab_size max_position_embeddings n_positions n_ctx "
    "max_seq_len model_max_length context_length",
    1: "n_group topk_group num_expert_group first_k_dense_replace eos_token_id",
    0: "pad_token_id",
}
"""Names of settings, by the value that they have in a small model."""

SIZES = {name: size for size, names in _NAMES.items() for name in names.split()} | {
    "bos_token_id": 2,
    "image_token_id": 63,
}

_OF_DEEPSEEK = ("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite")
_OF_DEEPSEEK += ("glm_moe_dsa", "kimi_linear", "minicpm3", "sarvam_mla", "youtu")
_LATENT = {"num_key_value_heads": 4, "head_dim": 4}  # DeepSeek's latent attention: head_dim is that of positions
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}
_VISION = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 16,
}

OWN: Mapping[str, Mapping[str, Any]] = (
    dict.fromkeys(_OF_DEEPSEEK, _LATENT)
    | {
        "bamba": _MAMBA | {"attn_layer_indices": [1]},
        "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "deepseek_v4": {"o_lora_rank": 8, "o_groups": 2},
        "dory": {"num_hidden_layers": 3, "n_input_layers": 1, "n_output_layers": 1,
                 "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "dots1": {"n_shared_experts": 1},
        "dots3_note_text": {"num_key_value_heads": 4} | {f"swa_{name}": size for name, size in {
            "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "head_dim": 12,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_rope_head_dim": 4}.items()},
        "falcon_h1": _MAMBA | {"mamba_d_ssm": 64},
        "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.5] * 4,
                         "layer_types": ["sliding_attention", "full_attention"] * 2},
        "gemma3": {"vision_config": _VISION, "mm_tokens_per_image": 4},
        "gemma4": {"text_config": {"global_head_dim": 8}, "vision_config": {"position_embedding_size": 16}},
        "gemma4_text": {"global_head_dim": 8},
        "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
        "granitemoehybrid": _MAMBA | {"layer_types": ["mamba", "attention"]},
        "inkling2_text": {"rel_extent": 16},
        "inkling2_loop_text": {"rel_extent": 16},
        "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
        "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
        "longcat_flash": _LATENT | {"zero_expert_num": 2},
        "mamba2": {"num_heads": 8, "n_groups": 1},
        "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1},
        "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
                           "indexer_compress_ratio": 2, "ple_embed_dim": 8},
        "recurrent_gemma": {"num_hidden_layers": 3},
        "reformer": {"is_decoder": True, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]},
        "roc_bert": {"shape_vocab_size": 8, "pronunciation_vocab_size": 8},
        "xlstm": {"hidden_size": 64, "qk_dim_factor": 1.0},
        "xmod": {"default_language": "en_XX"},
        "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
        "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8},
        "zaya": {"num_experts_per_tok": 1},
    }
)  # fmt: skip
SKIPPED: Mapping[str, str] = {
    "blt": "its encoder has tables of 3 million rows, whatever its settings are",
    "dbrx": "transformers 5.24 cannot create it from its own configuration",
    "dots3_note": "reads images and audio; its language model is dots3_note_text",
    "emu3": "its language model is saved as a type that transformers cannot load as a causal language model",
    "fuyu": "its configuration does not pass sizes to its language model, Persimmon",
    "gemma3n": "needs timm for images; its language model is gemma3n_text",
    "gemma4_assistant": "drafts tokens for another model, and reads its hidden states",
    "gemma4_unified_assistant": "drafts tokens for another model, and reads its hidden states",
    "gemma4_unified": "reads images and audio; its language model is gemma4_unified_text",
    "got_ocr2": "reads images only; its language model is Qwen 2",
    "mllama": "its language model is saved as a type that transformers cannot load as a causal language model",
    "moshi": "reads and writes audio",
    "moss_transcribe_diarize": "transcribes audio; its language model is Qwen 3",
    "musicgen": "writes audio",
    "musicgen_melody": "writes audio",
    "phi4_multimodal": "reads images and audio, with towers of fixed sizes; its language model is that of phi3",
    "qwen4_exp": "reads images; its language model is qwen4_exp_text",
}
"""Families without a small model, and why."""

FLOAT32 = frozenset({"hy_v4", "inkling2_text", "inkling2_loop_text", "xglm", "xlnet"})
"""Families whose code computes parts in float32 in each dtype, so that they cannot run in float64."""


def families() -> list[str]:
    """The families that have a small model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return [family for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if family not in SKIPPED]


def _fields(cls: Any) -> set[str]:
    return {field.name for field in fields(cls)} if is_dataclass(cls) else set()


def _settings(cls: Any) -> dict[str, Any]:
    """The settings of `SIZES` that the configuration class `cls` has, and a layer of each of its types."""
    names = _fields(cls)
    renamed = {cls.attribute_map.get(name, name): size for name, size in SIZES.items()}
    settings = {name: size for name, size in (SIZES | renamed).items() if name in names}
    for name, sub in (cls.sub_configs or {}).items():
        if name in names and hasattr(sub, "attribute_map"):
            settings[name] = _settings(sub)
    if "layer_types" in names:
        kinds = list(dict.fromkeys(cls().layer_types or []))
        if len(kinds) > 1:
            settings |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    return settings


def config_of(family: str) -> Any:
    """The configuration of a small model of `family`."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[family]
    settings = _settings(cls)
    for name, value in OWN.get(family, {}).items():
        both = isinstance(value, dict) and isinstance(settings.get(name), dict)
        settings[name] = {**settings[name], **value} if both else value
    return cls(**settings)


def write_model(directory: Path, family: str, *, seed: int = 0) -> Path:
    """Write a random model of `family` into a folder of `directory`, and return the folder.

    All parameters are random, also those of norms and biases, which else would be 1 and 0 and have no effect.
    """
    from transformers import AutoModelForCausalLM

    path = directory / family
    if path.exists():
        return path
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config_of(family))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            for layer in (layer for layer in model.modules() if isinstance(layer, torch.nn.Embedding)):
                if layer.padding_idx is not None:
                    layer.weight[layer.padding_idx] = 0  # as transformers loads it in some families
        model.to(torch.float32 if family in FLOAT32 else torch.float64).save_pretrained(path)
    return path
