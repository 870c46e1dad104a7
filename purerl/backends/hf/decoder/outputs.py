"""The outputs of a decoder and of the head after it, and their comparison."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from purerl.kernels.logp import VocabularyShard

__all__ = ["equal_up_to_rounding", "logit_shape", "output_head", "states_of"]

_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # Gemma, RecurrentGemma, xLSTM


def states_of(output: Any) -> tuple[Tensor, ...]:
    """[rows, time, ...] from the `output` of a decoder: the final hidden states, and router logits if it has them."""
    hidden, routers = output.last_hidden_state, getattr(output, "router_logits", None) or ()
    return hidden, *(logits.view(*hidden.shape[:2], -1) for logits in routers)


def output_head(head: Any) -> tuple[Tensor, Tensor | None, VocabularyShard | None]:
    """Weight and bias of `head`. If tensor parallelism has split it: the rows of this rank, and which rows these are.

    Another way to split it than by tokens of the vocabulary is undone.
    """
    weight, bias = head.weight, getattr(head, "bias", None)
    parts = [parameter for parameter in (weight, bias) if isinstance(parameter, DTensor)]
    if parts and all(parameter.placements == (Shard(0),) for parameter in parts):
        shard = VocabularyShard(weight.device_mesh.get_group(), len(weight))
        return weight.to_local(), None if bias is None else bias.to_local(), shard
    return _whole(weight), None if bias is None else _whole(bias), None


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def logit_shape(config: Any) -> dict[str, Any]:
    """The scale and the soft cap of the logits of a model with this `config`, as arguments of `token_outputs`."""
    text = config.get_text_config()
    scale = getattr(text, "logit_scale", None) or 1.0  # Cohere
    scale /= getattr(text, "logits_scaling", None) or 1.0  # Granite
    softcap = next((getattr(text, name) for name in _SOFTCAPS if getattr(text, name, None)), None)
    return {"scale": scale, "softcap": softcap}


def equal_up_to_rounding(computed: Tensor, expected: Tensor) -> bool:
    """Whether two results of a model agree, relative to the largest value of `expected`; NaN agrees with nothing.

    In a 16-bit dtype the rounding errors of all layers add up.
    """
    tolerance = 0.1 if expected.dtype.itemsize < 4 else 1e-3
    return float((computed - expected).abs().max()) <= tolerance * float(expected.abs().max())
