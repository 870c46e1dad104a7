"""The ranks of a distributed run: how many processes there are, and the collective calls that trainers need.

With one process every call is the identity, and torch.distributed is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch import distributed as dist

from purerl.errors import EngineError

__all__ = ["Ranks", "current_ranks"]


@frozen
class Ranks:
    """This process and its number among all processes of the default process group."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of `tensor` over all ranks; `tensor` itself may be overwritten."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of `tensors` by its sum over all ranks, with one collective call per dtype."""
        if self.size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            group = [tensor for tensor in tensors if tensor.dtype == dtype]
            total = self.sum(torch.cat([tensor.flatten() for tensor in group]))
            for tensor, part in zip(group, total.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """The picklable `value` of every rank, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def check_same(self, what: str, value: Any) -> None:
        """Raise EngineError on every rank if `value` differs between ranks; it names the ranks that differ from 0."""
        values = self.gather(value)
        different = [rank for rank, value in enumerate(values) if value != values[0]]
        if different:
            raise EngineError(
                f"{what}: ranks disagree",
                got=f"rank 0: {values[0]!r}; " + "; ".join(f"rank {rank}: {values[rank]!r}" for rank in different[:4]),
                need="the same call with the same arguments on every rank",
            )

    def on_first(self, action: Callable[[], object]) -> None:
        """Call `action` on rank 0 while the others wait. An exception that it raises is raised on every rank."""
        error = None
        if self.is_first:
            try:
                action()
            except Exception as raised:  # noqa: BLE001 - raised below, on every rank
                error = raised
        error = self.gather(error)[0]
        if error is not None:
            raise error


def current_ranks() -> Ranks:
    """The ranks of the default process group; one rank if torch.distributed is not initialized."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()
