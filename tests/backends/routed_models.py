"""Small mixtures of experts of several families in float64, and a plain computation with experts that are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from purerl.backends.hf.model.token_model import TokenModel
from tests.backends.tiny import VOCAB_SIZE

EXPERTS, K = 4, 2
_SIZES = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=24,
    moe_intermediate_size=8,
    num_experts_per_tok=K,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
)
_GROUPS = dict(n_routed_experts=EXPERTS, n_group=2, topk_group=1, first_k_dense_replace=1)
_LATENT = dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, n_shared_experts=1)


def _softmax(logits: Tensor, chosen: Tensor, *, is_normalized: bool) -> Tensor:
    """Probabilities of all experts, in float32 as in transformers; those that are chosen, perhaps with the sum 1."""
    weights = logits.float().softmax(-1).gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True) if is_normalized else weights


def _softmax_of_chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.gather(-1, chosen).softmax(-1)


def _sigmoid(logits: Tensor, chosen: Tensor, *, scale: float) -> Tensor:
    weights = logits.sigmoid().gather(-1, chosen)
    return scale * weights / (weights.sum(-1, keepdim=True) + 1e-20)


def _normalized(logits: Tensor, chosen: Tensor) -> Tensor:
    return _softmax(logits, chosen, is_normalized=True)


def _probabilities(logits: Tensor, chosen: Tensor) -> Tensor:
    return _softmax(logits, chosen, is_normalized=False)


FAMILIES: Mapping[str, tuple[dict[str, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "qwen3_moe": (dict(num_experts=EXPERTS, head_dim=8, norm_topk_prob=True), _normalized),
    "qwen2_moe": (dict(num_experts=EXPERTS, shared_expert_intermediate_size=8), _probabilities),
    "mixtral": (dict(num_local_experts=EXPERTS), _normalized),
    "olmoe": (dict(num_experts=EXPERTS), _probabilities),
    "flex_olmo": (dict(num_experts=EXPERTS), _probabilities),
    "gpt_oss": (
        dict(num_local_experts=EXPERTS, head_dim=8, layer_types=["full_attention"] * 3, rope_parameters=None),
        _softmax_of_chosen,
    ),
    "granitemoe": (dict(num_local_experts=EXPERTS), lambda logits, chosen: _softmax_of_chosen(logits.float(), chosen)),
    "ernie4_5_moe": (
        dict(moe_num_experts=EXPERTS, moe_k=K, moe_layer_start_index=0, moe_num_shared_experts=1),
        _normalized,
    ),
    "deepseek_v3": (
        _GROUPS | _LATENT,
        lambda logits, chosen: _sigmoid(logits, chosen, scale=2.5),
    ),
    "glm4_moe": (_GROUPS | dict(head_dim=8), lambda logits, chosen: _sigmoid(logits, chosen, scale=1.0)),
}
"""Settings of each family, and the weights of experts [n, k] from router logits [n, experts] and their indices."""


def causal_model(family: str, *, seed: int = 0) -> Any:
    """A random causal language model of `family` in float64, whose experts are computed one after the other."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = FAMILIES[family][0] if family in FAMILIES else dict(num_local_experts=EXPERTS, head_dim=8)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **_SIZES | settings))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.3)
    model = model.double().eval()
    model.set_experts_implementation("eager")
    return model


def token_model(family: str) -> TokenModel:
    """A `TokenModel` of a random model of `family`, which records and replays."""
    module = TokenModel(causal_model(family), ("logp",), path=Path("nowhere"))
    module.replay_routes()
    return module


@torch.no_grad()
def choices_of(causal: Any, tokens: Sequence[int]) -> np.ndarray:
    """[tokens, layers, k] the experts that the routers of `causal` return in one pass over `tokens`."""
    chosen: list[Tensor] = []
    routers = [m for m in causal.modules() if type(m).__name__.lower().endswith("topkrouter")]
    handles = [each.register_forward_hook(lambda _, args, output: chosen.append(output[-1])) for each in routers]
    try:
        causal(input_ids=torch.tensor([[*tokens]]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(chosen, 1).numpy()


def in_order(routes: np.ndarray) -> np.ndarray:
    """`routes` with the experts of a token in the order of their indices."""
    return np.sort(routes, axis=-1)


def routers_in(module: TokenModel) -> list[Any]:
    return [m for m in module.decoder.modules() if type(m).__name__.lower().endswith("topkrouter")]


@contextmanager
def chosen_experts(module: TokenModel, family: str, chosen: Tensor) -> Iterator[None]:
    """Let the experts of `chosen` [n, layers, k] be those of each token, by a plain computation of their weights.

    Tokens with -1 go through the experts that the router itself chooses. Qwen3-MoE's experts are computed here, too.
    """
    weights_of, routers = FAMILIES[family][1], routers_in(module)
    experts = [m for m in module.decoder.modules() if type(m).__name__ == "Qwen3MoeExperts"]
    saved = [router.forward for router in routers]
    for index, router in enumerate(routers):
        router.forward = _given(router.forward, weights_of, chosen[:, index])
    for each in experts:
        each.forward = _loop_over_experts(each)
    try:
        yield
    finally:
        for router, forward in zip(routers, saved, strict=True):
            router.forward = forward
        for each in experts:
            del each.forward


def _given(forward: Callable[..., Any], weights_of: Callable[[Tensor, Tensor], Tensor], chosen: Tensor) -> Any:
    def route(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, own_weights, own = forward(hidden)
        indices = torch.where(chosen < 0, own, chosen)
        return logits, weights_of(logits, indices).to(own_weights.dtype), indices

    return route


def _loop_over_experts(experts: Any) -> Any:
    def compute(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        outputs = []
        for x, indices, factors in zip(hidden, chosen.tolist(), weights, strict=True):
            parts = []
            for expert, factor in zip(indices, factors, strict=True):
                gate, up = (experts.gate_up_proj[expert] @ x).chunk(2)
                parts.append(factor * (experts.down_proj[expert] @ (functional.silu(gate) * up)))
            outputs.append(torch.stack(parts).sum(0))
        return torch.stack(outputs)

    return compute
