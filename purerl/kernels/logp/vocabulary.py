"""Sums over the whole vocabulary for chunks of logits: of one process that has all of it, or of a group of ranks.

In both classes, `z` are logits [n, columns] of the rows of the head that this process has, and ids are token ids of the
whole vocabulary. The results are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import pad

from purerl.errors import InputError

__all__ = ["Vocabulary", "VocabularyShard", "WholeVocabulary"]


class WholeVocabulary:
    """This process has all rows of the head."""

    def max(self, z: Tensor) -> Tensor:
        """The maximum of each row: [n, 1]."""
        return z.amax(-1, keepdim=True)

    def sum(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """The sums over all ranks of `columns`, which are [n, any]."""
        return columns

    def local(self, ids: Tensor) -> Tensor:
        """The columns of `ids`; those that other ranks have are negative, or too large."""
        return ids

    def topk(self, z: Tensor, k: int) -> Tensor:
        """The ids of the k largest logits of each row, in descending order: [n, k]."""
        return z.topk(k).indices

    def gather(self, z: Tensor, ids: Tensor) -> Tensor:
        """The logits of `ids` [n, k]; 0 for those that other ranks have."""
        return z.gather(-1, ids)


@frozen
class VocabularyShard:
    """This process has some consecutive rows of the head, and the other ranks of `group` have the others.

    group  a process group of torch.distributed, for example `mesh.get_group("tensor")` of a DeviceMesh
    size   number of rows of all ranks: the size of the vocabulary

    The rows are divided as by DTensor with Shard(0): all ranks have the same number, and the last one has the rest.

    With a shard, `weight` and `bias` of `token_outputs` are the rows of this rank, and all other arguments are the same
    on all ranks. The call is collective, and so is its backward pass. The outputs are complete, and the same on all
    ranks. For each chunk of tokens, the forward pass all-reduces the maximum [n, 1] and a few sums [n, 1], and with `k`
    it gathers [n, k] candidates. The backward pass requires the same incoming gradients on all ranks, which is so if
    all compute the same loss. It all-reduces the gradient with respect to `hidden`, which is then complete, and the
    same on all ranks: do not add it up again. The gradients with respect to `weight` and `bias` are those of the rows
    of this rank, and nothing is communicated for them. No rank has logits of all tokens, or the rows of other ranks.

    Raises: InputError on every rank if there is a rank without rows.
    """

    group: dist.ProcessGroup
    size: int

    def __attrs_post_init__(self) -> None:
        if (self.group.size() - 1) * self.max_rows >= self.size:
            raise InputError(
                "the head cannot be split by rows",
                got=f"{self.size} tokens in the vocabulary, {self.group.size()} ranks",
                need="at least one row for each rank",
                do="use fewer ranks",
            )

    @property
    def max_rows(self) -> int:
        """The number of rows of all ranks but the last."""
        return -(-self.size // self.group.size())

    @property
    def offset(self) -> int:
        """The number of rows before the first row of this rank."""
        return self.group.rank() * self.max_rows

    @property
    def rows(self) -> slice:
        """The rows of the head that this rank has."""
        return slice(self.offset, min(self.offset + self.max_rows, self.size))

    def max(self, z: Tensor) -> Tensor:
        """See `WholeVocabulary`."""
        result = z.amax(-1, keepdim=True)
        dist.all_reduce(result, dist.ReduceOp.MAX, group=self.group)
        return result

    def sum(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """See `WholeVocabulary`. This is one collective call for all columns."""
        result = torch.cat(list(columns), -1)
        dist.all_reduce(result, group=self.group)
        return result.split([column.shape[-1] for column in columns], -1)

    def local(self, ids: Tensor) -> Tensor:
        """See `WholeVocabulary`."""
        return ids - self.offset

    def topk(self, z: Tensor, k: int) -> Tensor:
        """See `WholeVocabulary`. The candidates are the k largest logits of each rank."""
        logits, ids = z.topk(min(k, z.shape[-1]))
        missing = k - logits.shape[-1]
        all_logits = self._concatenate(pad(logits, (0, missing), value=-torch.inf))
        all_ids = self._concatenate(pad(ids + self.offset, (0, missing)))
        return all_ids.gather(-1, all_logits.topk(k).indices)

    def gather(self, z: Tensor, ids: Tensor) -> Tensor:
        """See `WholeVocabulary`."""
        columns = self.local(ids)
        is_here = (columns >= 0) & (columns < z.shape[-1])
        return torch.where(is_here, z.gather(-1, columns.clamp(0, z.shape[-1] - 1)), 0)

    def _concatenate(self, columns: Tensor) -> Tensor:
        """The columns of all ranks, in the order of ranks: [n, ranks * k]."""
        parts = [torch.empty_like(columns) for _ in range(self.group.size())]
        dist.all_gather(parts, columns.contiguous(), group=self.group)
        return torch.cat(parts, -1)


Vocabulary = WholeVocabulary | VocabularyShard
