"""What transformers' attention sees of a `Table`: one cache for rows that enter, one for rows that go on.

A cache stands for all layers at once; layers with a sliding window keep all columns, and their mask hides the old ones.
This file imports transformers, and is imported when a generator is built.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from purerl.backends.hf.table import Table

__all__ = ["Entering", "Going"]

KeyValue = tuple[Tensor, Tensor]


class _OnTable(Cache):
    """The questions that transformers asks a cache when it builds masks and positions."""

    def __init__(self, table: Table, past: int) -> None:
        super().__init__(layers=[])
        self.table, self.past = table, past

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.past + query_length, 0


class Entering(_OnTable):
    """Takes up rows: attention sees the block it is given, and the block moves to the right end of the table.

    The block's prompts are right-padded, so that under the causal mask no token sees padding. Row `k` of `rows` is
    prompt `sources[k]` of the block; `lengths` [rows] are the prompts' lengths.
    """

    def __init__(self, table: Table, rows: slice, sources: Tensor, lengths: Tensor, width: int) -> None:
        super().__init__(table, past=0)
        self.rows, self.width, self.sources = rows, width, sources[:, None]
        # Before a row begins its first token stands in: never looked at, and finite unless the row itself is not.
        self.columns = (torch.arange(width, device=lengths.device) + (lengths - width)[:, None]).clamp(min=0)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        self._place(("key", layer_idx), key_states)
        self._place(("value", layer_idx), value_states)
        return key_states, value_states

    def _place(self, name: tuple[str, int], block: Tensor) -> None:
        moved = block[self.sources, :, self.columns]  # [rows, columns, heads, width]
        self.table.add(name, block)
        view = self.table.view(name, self.rows, self.table.now - self.width, self.table.now)
        view.copy_(moved.permute(0, 2, 1, 3))


class Going(_OnTable):
    """Appends column `now` to all rows in use: attention sees the columns in use."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, past=table.now - table.start)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeyValue:
        return self._append(("key", layer_idx), key_states), self._append(("value", layer_idx), value_states)

    def _append(self, name: tuple[str, int], column: Tensor) -> Tensor:
        self.table.add(name, column)
        view = self.table.view(name, slice(0, self.table.rows), self.table.start, self.table.now + 1)
        view[:, :, -1:] = column
        return view
