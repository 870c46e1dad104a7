"""The inputs of a decoder: token ids of rows, or embeddings with the features of images (`images.py`).

Rows are a rectangle [rows, time]. A forward pass reads a part of it: padded rows, a pack, prefixes or suffixes. Which
part that is, and what is read of it, know nothing about each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from purerl.types import TokenInt

__all__ = ["Inputs", "Part", "take_positions", "token_inputs"]

Part = Callable[[Tensor], Tensor]
"""Selects what is read in one forward pass, from [..., rows, time] to [..., r, t]."""

Inputs = Callable[[Part], dict[str, Any]]
"""The arguments of a decoder for a part. If positions are among them, they replace those that the part has."""


def token_inputs(tokens: TokenInt) -> Inputs:
    """The inputs of rows of text."""
    return lambda part: {"input_ids": part(tokens)}


def take_positions(index: Tensor) -> Part:
    """The part with these flat indices [r, t]. Without rows it is 0 everywhere, and `index` has only zeros."""

    def select(values: Tensor) -> Tensor:
        flat = values.flatten(-2) if values.shape[-2] else values.new_zeros(*values.shape[:-2], 1)
        return flat[..., index]

    return select
