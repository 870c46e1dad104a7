"""The key-value caches that transformers' attention uses on a `Table`: one for prefill, one for decoding.

A cache object serves all layers. Layers with a sliding window also keep all columns; their mask hides the old ones.

This file imports transformers. It is imported when a generator or a trainer is built.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from purerl.backends.hf.table import Table

__all__ = ["DecodeCache", "PastCache", "PrefillCache"]

KeyValue = tuple[Tensor, Tensor]


class PastCache(Cache):
    """A cache with `past` columns before the tokens that are read: what transformers needs for masks and positions."""

    def __init__(self, past: int) -> None:
        super().__init__(layers=[])
        self.past = past

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.past + query_length, 0


class PrefillCache(PastCache):
    """Stores the keys and values of prompts in new rows of the table, aligned to the right.

    rows     the new rows of the table
    sources  [rows] the prompt of each row: an index into the block of prompts that the model reads
    lengths  [rows] tokens of each prompt that are in the block; those before them are in `prefix`
    past     columns of `prefix`
    width    tokens of the longest prompt
    prefix   name of a plane -> [prompts, heads, past, width], aligned to the right, with the first token in the
             columns before; not called if `past` is 0

    The tokens in the block are right-padded, so no token attends to padding under the causal mask.
    """

    def __init__(
        self,
        table: Table,
        rows: slice,
        sources: Tensor,
        lengths: Tensor,
        *,
        past: int,
        width: int,
        prefix: Callable[[Hashable], Tensor],
    ) -> None:
        super().__init__(past)
        self.table, self.rows, self.width, self.prefix, self.sources = table, rows, width, prefix, sources[:, None]
        # Columns before a row starts hold its first token. It is masked, and finite unless the row itself is not.
        columns = torch.arange(width, device=lengths.device) + (past + lengths - width)[:, None]
        self.columns = columns.clamp(min=0)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self._store(("key", layer_idx), key_states), self._store(("value", layer_idx), value_states)

    def _store(self, name: tuple[str, int], block: Tensor) -> Tensor:
        if self.past:
            # The layout in memory is [rows, columns, heads, width], so that `tokens` below is a view.
            block = torch.cat((self.prefix(name).transpose(1, 2), block.transpose(1, 2)), 1).transpose(1, 2)
        index = self.sources * block.shape[2] + self.columns
        tokens = block.transpose(1, 2).flatten(0, 1)
        aligned = tokens.index_select(0, index.flatten()).unflatten(0, index.shape)  # [rows, columns, heads, width]
        self.table.add_plane(name, block)
        view = self.table.view(name, self.rows, self.table.now - self.width, self.table.now)
        view.copy_(aligned.permute(0, 2, 1, 3))
        return block


class DecodeCache(PastCache):
    """Stores the keys and values of column `now` of all rows. Attention reads all columns in use."""

    def __init__(self, table: Table) -> None:
        super().__init__(past=table.now - table.start)
        self.table = table

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self._append(("key", layer_idx), key_states), self._append(("value", layer_idx), value_states)

    def _append(self, name: tuple[str, int], column: Tensor) -> Tensor:
        self.table.add_plane(name, column)
        view = self.table.view(name, slice(0, self.table.rows), self.table.start, self.table.now + 1)
        view[:, :, -1:] = column
        return view
