"""The layers of a decoder, as transformers marks them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

__all__ = ["layers_of"]


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The transformer layers in `module`, as transformers marks them."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return (layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer))
