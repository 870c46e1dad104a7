"""Weight decay of the HF trainer: matrices decay, and nothing else, whatever its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from purerl.backends.hf.training.decay import matrices
from tests.backends.tiny import make_trainer, write_model
from tests.backends.training import make_step

_SIZES: dict[str, Any] = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
_HEADS = _SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
_MAMBA = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}

# The last parts of the names of all parameters that do not decay.
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "gpt_oss": (
        _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"embed_tokens.weight", "experts.gate_up_proj_bias", "experts.down_proj_bias", "self_attn.sinks", "router.bias"}
        | {f"{name}_proj.bias" for name in "qkvo"}
        | {"input_layernorm.weight", "post_attention_layernorm.weight", "norm.weight"},
    ),
    "mamba": (
        _MAMBA,
        {"embeddings.weight", "norm.weight", "norm_f.weight", "mixer.A_log", "mixer.D", "conv1d.bias", "dt_proj.bias"},
    ),
    "mamba2": (
        _MAMBA | {"head_dim": 8, "num_heads": 4, "n_groups": 1},
        {"embeddings.weight", "norm.weight", "norm_f.weight", "mixer.A_log", "mixer.D", "mixer.dt_bias", "conv1d.bias"},
    ),
    "cohere": (_HEADS | {"use_qk_norm": True}, {"embed_tokens.weight", "input_layernorm.weight", "norm.weight"}
               | {"q_norm.weight", "k_norm.weight"}),
    "rwkv": (
        {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16},
        {"embeddings.weight", "attention.time_decay", "attention.time_first"}
        | {f"{owner}.time_mix_{name}" for owner in ("attention", "feed_forward") for name in ("key", "receptance")}
        | {"attention.time_mix_value"}
        | {f"{name}.{part}" for name in ("pre_ln", "ln1", "ln2", "ln_out") for part in ("weight", "bias")},
    ),
    "gpt2": (
        {"vocab_size": 19, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        {"wte.weight", "wpe.weight", "c_attn.bias", "c_proj.bias", "c_fc.bias"}
        | {f"{name}.{part}" for name in ("ln_1", "ln_2", "ln_f") for part in ("weight", "bias")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", CASES)
def test_parameters_that_do_not_decay(family: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings, expected = CASES[family]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    decaying = matrices(model)
    others = {name for name, parameter in model.named_parameters() if id(parameter) not in decaying}
    assert {".".join(name.split(".")[-2:]) for name in others} == expected
    assert all(parameter.ndim > 1 for parameter in model.parameters() if id(parameter) in decaying)


@pytest.mark.parametrize(
    ("name", "shape", "decays"),
    [
        ("weight", (3, 4), True),
        ("gate_up_proj", (2, 3, 4), True),
        ("in_proj_weight", (3, 4), True),
        ("weight_d", (3, 4), True),
        ("w_scaled", (3, 4), True),
        ("time_mix_value", (1, 1, 4), False),
        ("D", (3, 4), False),
        ("A_log", (3, 4), False),
        ("pos_bias_u", (3, 4), False),
        ("layer_scale_2", (3, 4), False),
        ("lambda1", (3, 4), False),
        ("position_embeddings", (1, 3, 4), False),
        ("rel_pos_h", (3, 4), False),
        ("latents", (3, 4), False),
        ("sinks", (3, 4), False),
    ],
)
def test_parameters_are_known_by_their_names(name: str, shape: tuple[int, ...], decays: bool) -> None:
    module = nn.Module()
    module.register_parameter(name, nn.Parameter(torch.zeros(shape)))
    assert bool(matrices(module)) is decays


def test_a_head_with_one_row_decays_and_the_weights_of_norms_of_heads_do_not() -> None:
    assert matrices(nn.Linear(4, 1, bias=False))
    norm = type("OwnRMSNorm", (nn.Module,), {})()
    norm.weight = nn.Parameter(torch.zeros(2, 4))
    assert not matrices(norm)
    assert not matrices(nn.ModuleDict({"ln_q": nn.ParameterDict({"weight": torch.zeros(2, 4)})}))


def test_a_step_without_a_gradient_of_the_loss_shows_the_decay(tmp_path: Path) -> None:
    """AdamW multiplies what decays by 1 - lr * weight_decay."""
    trainer = make_trainer(write_model(tmp_path), lr=0.1, weight_decay=0.5, skip_zero_gradients=False)
    before = {name: value.detach().clone() for name, value in trainer.parameters.items()}
    batch, objective, counts = make_step(0)
    trainer.step(
        batch.apply(lambda x: x).update({"advantage": torch.zeros_like(batch["advantage"])}), objective, counts
    )
    shrunk = {name for name, value in trainer.parameters.items() if not torch.equal(value, before[name])}
    assert shrunk == {name for name in before if "norm" not in name and "embed" not in name}
    for name in shrunk:
        torch.testing.assert_close(trainer.parameters[name].detach(), before[name] * (1 - 0.1 * 0.5))
