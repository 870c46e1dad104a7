"""The key-value caches that transformers' attention uses on a `Table`: two for prefill, one for decoding.

A cache object serves all layers. Layers with a sliding window also keep all columns; their mask hides the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from purerl.backends.hf.model.past_cache import PastCache
from purerl.backends.hf.sampling.table import Table

__all__ = ["ContinuedCache", "DecodeCache", "PrefillCache"]

KeyValue = tuple[Tensor, Tensor]


class PrefillCache(PastCache):
    """Stores the keys and values of prompts in new rows of the table, aligned to the right.

    rows     the new rows of the table
    sources  [rows] the prompt of each row: an index into the block of prompts that the model reads
    lengths  [rows] tokens of each prompt
    width    tokens of the longest prompt

    The block is right-padded, so no token attends to padding under the causal mask.
    """

    def __init__(self, table: Table, rows: slice, sources: Tensor, lengths: Tensor, *, width: int) -> None:
        super().__init__(past=0)
        self.table, self.rows, self.width = table, rows, width
        # Columns before a row starts hold its first token. It is masked, and finite unless the row itself is not.
        columns = torch.arange(width, device=lengths.device) + (lengths - width)[:, None]
        self.index = sources[:, None] * width + columns.clamp(min=0)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self.store(("key", layer_idx), key_states), self.store(("value", layer_idx), value_states)

    def store(self, name: Hashable, block: Tensor) -> Tensor:
        """Store `block` [prompts, heads, columns, width] in the plane `name`; what attention reads."""
        tokens = block.transpose(1, 2).flatten(0, 1)
        aligned = tokens.index_select(0, self.index.flatten()).unflatten(0, self.index.shape)
        self.table.add_plane(name, block)
        view = self.table.view(name, self.rows, self.table.now - self.width, self.table.now)
        view.copy_(aligned.permute(0, 2, 1, 3))
        return block


class ContinuedCache(PastCache):
    """Stores prompts that continue kept sequences in new rows of the table, which attention reads.

    rows     the new rows of the table
    sources  [rows] the prompt of each row: an index into the block of tokens that the model reads
    firsts   [prompts] the first row of each prompt
    is_new   [rows, columns of the block] which of its tokens belong to the prompt
    width    tokens of the longest prompt, kept ones included
    kept     name of a plane -> [rows, heads, columns, width of a head], aligned to the right; its values for new tokens
             are replaced

    The block is left-padded, so all prompts end in the column before `table.now`.
    """

    def __init__(
        self,
        table: Table,
        rows: slice,
        sources: Tensor,
        firsts: Tensor,
        is_new: Tensor,
        *,
        width: int,
        kept: Callable[[Hashable], Tensor],
    ) -> None:
        self.new = is_new.shape[1]
        super().__init__(past=width - self.new)
        self.table, self.rows, self.width, self.kept = table, rows, width, kept
        self.sources, self.firsts, self.is_new = sources, firsts, is_new[:, None, :, None]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self.store(("key", layer_idx), key_states), self.store(("value", layer_idx), value_states)

    def store(self, name: Hashable, block: Tensor) -> Tensor:
        """Store `block` [prompts, heads, columns, width] in the plane `name`; what attention reads."""
        self.table.add_plane(name, block)
        view = self.table.view(name, self.rows, self.table.now - self.width, self.table.now)
        view.copy_(self.kept(name))
        new = view[:, :, -self.new :]
        new.copy_(torch.where(self.is_new, block.index_select(0, self.sources), new))
        return view if len(self.firsts) == len(view) else view.index_select(0, self.firsts)


class DecodeCache(PastCache):
    """Stores the keys and values of column `now` of all rows. Attention reads all columns in use."""

    def __init__(self, table: Table) -> None:
        super().__init__(past=table.now - table.start)
        self.table = table

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self.store(("key", layer_idx), key_states), self.store(("value", layer_idx), value_states)

    def store(self, name: Hashable, column: Tensor) -> Tensor:
        """Store `column` [rows, heads, 1, width] in the plane `name`; what attention reads."""
        self.table.add_plane(name, column)
        view = self.table.view(name, slice(0, self.table.rows), self.table.start, self.table.now + 1)
        view[:, :, -1:] = column
        return view
