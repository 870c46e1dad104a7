"""A cache of keys and values as transformers needs it: the number of tokens before those that are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn
from transformers.cache_utils import Cache

__all__ = ["PastCache", "cache_argument"]


def cache_argument(model: nn.Module, value: Cache) -> dict[str, Cache]:
    """The argument with which `model` takes a cache: `cache` since transformers 5.24, `past_key_values` before."""
    return {_name_of_cache(type(model).forward): value}


@cache
def _name_of_cache(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


class PastCache(Cache):
    """A cache with `past` columns before the tokens that are read: what transformers needs for masks and positions."""

    def __init__(self, past: int) -> None:
        super().__init__(layers=[])
        self.past = past

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.past + query_length, 0
