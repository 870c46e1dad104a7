"""Sequence packing: a model reads the tokens of several rows as one sequence, without padding.

    index      of each token of the pack, in the rectangle [rows, time]
    position   of each token in its row: positions start again at 0 with each row
    boundaries where rows begin and end: no token attends to another row (`packed_attention.py`)

Everything but attention works on each token alone, so it needs no change. Rows are in descending order of length, so
that rows of equal length are neighbors: attention reads them as one rectangle, without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from purerl.backends.hf.decoder.inputs import Inputs, take_positions
from purerl.backends.hf.decoder.outputs import states_of
from purerl.backends.hf.model.packed_attention import Boundaries
from purerl.kernels.partition import tokens_needed
from purerl.types import TokenBool

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Pack", "pack", "read_pack"]


class Pack(NamedTuple):
    """Several rows as one sequence of n tokens.

    index       [n] flat index of each token in [rows, time]
    position    [n] position of each token in its row
    start       [rows] where each row begins in the pack; 0 for rows that are not read
    boundaries  of the rows in the pack
    """

    index: Tensor
    position: Tensor
    start: Tensor
    boundaries: Boundaries

    def to(self, device: torch.device) -> Pack:
        """The same pack with its tensors on `device`."""
        boundaries = Boundaries(self.boundaries.runs, self.boundaries.offsets.to(device))
        return Pack(self.index.to(device), self.position.to(device), self.start.to(device), boundaries)

    def padded(self, multiple: int) -> Pack:
        """The pack with one more row of padding, so that the number of tokens is a multiple of `multiple`."""
        missing = -len(self.index) % multiple
        if not missing:
            return self
        offsets = functional.pad(self.boundaries.offsets, (0, 1), value=len(self.index) + missing)
        boundaries = Boundaries((*self.boundaries.runs, (1, missing)), offsets)
        # All tokens of the padding have the position 0, because a model may have no others.
        index, position = (functional.pad(tensor, (0, missing)) for tensor in (self.index, self.position))
        return Pack(index, position, self.start, boundaries)


def pack(action: TokenBool) -> Pack:
    """The tokens that must be read of each row, as one pack.

    Rows without action tokens are not read. If there are no others, the pack is the first token of the rectangle, and
    nothing of it is used.

    >>> import torch
    >>> packed = pack(torch.tensor([[False, True, False], [False, True, True]]))
    >>> packed.index, packed.position, packed.start, packed.boundaries.runs
    (tensor([3, 4, 0]), tensor([0, 1, 0]), tensor([2, 0]), ((1, 2), (1, 1)))
    """
    lengths = tokens_needed(action) if len(action) else action.new_zeros(0, dtype=torch.int64)
    order = lengths.argsort(descending=True, stable=True)
    order = order[lengths[order] > 0]
    sizes = lengths[order] if len(order) else lengths.new_ones(1)
    ends = sizes.cumsum(0)
    starts = ends - sizes
    position = torch.arange(int(ends[-1]), device=action.device) - starts.repeat_interleave(sizes)
    index = position
    if len(order):
        index = index + action.shape[1] * order.repeat_interleave(sizes)
    tokens, rows = sizes.unique_consecutive(return_counts=True)
    boundaries = Boundaries(tuple(zip(rows.tolist(), tokens.tolist(), strict=True)), functional.pad(ends, (1, 0)).int())
    return Pack(index, position, torch.zeros_like(lengths).index_copy(0, order, starts[: len(order)]), boundaries)


def read_pack(
    backbone: nn.Module,
    pack: Pack,
    inputs: Inputs,
    action: TokenBool,
    *,
    multiple: int,
    group: ProcessGroup | None,
    **options: Any,
) -> tuple[TokenBool, tuple[Tensor, ...], Tensor]:
    """Hidden states of a pack.

    pack      of rows with these `inputs` and `action`, [rows, time]
    multiple  tokens are padded to a multiple of this number
    group     the ranks that each read a part of the pack; None: it is read on this rank

    Returns the m action tokens that this rank predicts, as [rows, time]; the final hidden states [1, n, d] and, with
    ``output_router_logits=True`` in `options`, the router logits of each layer; and, for each of the m tokens, the
    index [m] of the token before it in the pack.
    """
    rows, times = action.nonzero(as_tuple=True)
    before = pack.start[rows] + times - 1
    pack = pack.padded(multiple * (1 if group is None else group.size()))
    start, part = 0, slice(None)
    if group is not None:
        from purerl.backends.hf.model.sequence import own_positions

        start, size = own_positions(len(pack.index), group)
        part = slice(start, start + size)
        own = (before >= start) & (before < start + size)
        action, before = action.masked_scatter(action, own), before[own]
    states = backbone(
        **{"position_ids": pack.position[part][None], **inputs(take_positions(pack.index[part][None]))},
        use_cache=False,
        boundaries=pack.boundaries,
        **options,
    )
    return action, states_of(states), before - start
