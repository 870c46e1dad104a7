"""The decoder of a causal language model of transformers, without any head, and its layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["decoder_of", "layers_of"]


def decoder_of(model: Any) -> Any:
    """The decoder of `model`, as its `get_decoder` says, or else what is called `model` in it.

    `get_decoder` finds a part by its name. In two families it is another one: the output head of ModernBERT's decoder
    is called `decoder`, and Llama 4 has no part with a name that it knows, so that it is the whole model.
    """
    decoder = model.get_decoder()
    is_other = decoder is model or not hasattr(decoder, "config")
    return model.model if is_other and hasattr(model, "model") else decoder


def layers_of(module: Any) -> Iterator[Any]:
    """The transformer layers in `module`, as transformers marks them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return (layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer))
