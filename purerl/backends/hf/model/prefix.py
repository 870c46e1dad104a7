"""Rows of a group that start with the same tokens: their common prefix goes through the model once.

    prefixes    the distinct prefixes, one for each group
    suffixes    the remaining tokens of each row, read with the keys and values of its prefix

Eight completions of one prompt read the prompt once instead of eight times, forward and backward: the gradients of all
eight flow into the one computation. The result is the same up to rounding, because attention sees the same tokens at
the same distances.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from purerl.backends.hf.decoder.backbone import decoder_of
from purerl.backends.hf.decoder.inputs import Inputs, take_positions, token_inputs
from purerl.backends.hf.decoder.limits import unsupported_layers
from purerl.backends.hf.decoder.outputs import equal_up_to_rounding, states_of
from purerl.backends.hf.model.added_gradients import call_added
from purerl.backends.hf.model.past_cache import PastCache, cache_argument
from purerl.types import RowInt, TokenBool, TokenInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Plan", "can_share", "plan", "read_prefixes", "separate_plan", "states"]

_WORTHWHILE = 0.9
"""Two passes are worthwhile if they read at most this fraction of the tokens that one pass would read."""


class Plan(NamedTuple):
    """The split of rows into prefixes and suffixes.

    number     [rows] index among the n rows that have an action token; the other rows are not read
    member     [n] the prefix of each row
    length     [prefixes] tokens of each prefix
    prefixes   [prefixes, columns] flat indices of tokens in [rows, time]; what follows the end of a prefix has no
               effect
    suffixes   [n, columns] likewise; at least one column, so that there are always two forward passes
    """

    number: Tensor
    member: Tensor
    length: Tensor
    prefixes: Tensor
    suffixes: Tensor

    def to(self, device: torch.device) -> Plan:
        """The same plan with its tensors on `device`."""
        return Plan(*(tensor.to(device) for tensor in self))


def plan(tokens: TokenInt, action: TokenBool, group: RowInt) -> Plan | None:
    """One prefix per group, or None if that would read about as many tokens as reading each row on its own.

    A prefix ends before the first action token of its group. `tokens` may be any numbers that are the same where rows
    have the same content.
    """
    read = action.any(-1)
    if len(group[read].unique()) == int(read.sum()):
        return None
    split = _split(tokens, action, group)
    longest = int((action[read] * torch.arange(tokens.shape[1], device=tokens.device)).amax())
    cost = split.prefixes.numel() + split.suffixes.numel()
    is_worthwhile = int(split.length.min()) > 0 and cost <= _WORTHWHILE * int(read.sum()) * longest
    return split if is_worthwhile else None


def separate_plan(tokens: TokenInt, action: TokenBool) -> Plan:
    """A prefix and a suffix for each row on its own: for a rank whose rows have nothing in common.

    All ranks run the same number of forward passes, because a pass through a sharded model is a collective call.
    Without action tokens the plan has one prefix and one suffix, of which nothing is used.
    """
    if action.any():
        return _split(tokens, action, torch.arange(len(tokens), device=tokens.device))
    zero, index = tokens.new_zeros(1), tokens.new_zeros(1, 1)
    return Plan(tokens.new_zeros(len(tokens)), zero, zero + 1, index, index)


def _split(tokens: TokenInt, action: TokenBool, group: RowInt) -> Plan:
    """The longest common prefix of each group, before its first action token; it may be empty."""
    read = action.any(-1)
    start = tokens.shape[1] * read.nonzero()  # [n, 1] flat index of the first token of each row
    tokens, action, time = tokens[read], action[read], torch.arange(tokens.shape[1], device=tokens.device)
    labels, member = group[read].unique(return_inverse=True)
    rows = len(tokens)
    leader = torch.full_like(labels, rows).scatter_reduce(0, member, torch.arange(rows).to(labels), "amin")
    common = (tokens == tokens[leader][member]).cumprod(-1).sum(-1)
    first, last = torch.where(action, time, len(time)).amin(-1), torch.where(action, time, 0).amax(-1)
    length = torch.full_like(labels, len(time)).scatter_reduce(0, member, torch.minimum(common, first), "amin")
    columns, remaining = int(length.max()), max(1, int((last - length[member]).max()))
    suffixes = start + (time[:remaining] + length[member][:, None]).clamp(max=len(time) - 1)
    return Plan(read.cumsum(0) - 1, member, length, start[leader] + time[:columns], suffixes)


def read_prefixes(
    backbone: nn.Module, plan: Plan, inputs: Inputs, action: TokenBool, *, adds_early: bool = False, **options: Any
) -> tuple[tuple[Tensor, ...], Tensor]:
    """The `states` of `plan`, and for each of the m action tokens the flat index [m] of the token before it."""
    outputs = states(backbone, plan, inputs, adds_early=adds_early, **options)
    rows, times = action.nonzero(as_tuple=True)
    rows = plan.number[rows]
    return outputs, rows * outputs[0].shape[1] + times - plan.length[plan.member[rows]]


def states(
    backbone: nn.Module, plan: Plan, inputs: Inputs, *, adds_early: bool = False, **options: Any
) -> tuple[Tensor, ...]:
    """Final hidden states [n, 1 + suffix columns, d]: of the last token of each row's prefix, and of its suffix.

    With `adds_early` the gradients that come from suffixes are added up before those that come from prefixes exist.
    With ``output_router_logits=True`` in `options`, the router logits of each layer follow, in the same shape.
    """
    columns, remaining = plan.prefixes.shape[1], plan.suffixes.shape[1]
    prefix = _PrefixCache()
    of_prefixes = backbone(
        **inputs(take_positions(plan.prefixes)), **cache_argument(backbone, prefix), use_cache=True, **options
    )
    # Prefixes are aligned to the right, so that suffixes follow at the right distances.
    origin = torch.arange(columns + remaining, device=plan.length.device) - columns + plan.length[:, None]
    padded = bool((plan.length < columns).any())
    suffix = _SuffixCache(prefix, plan.member, origin[:, :columns].clamp(min=0) if padded else None, columns)
    of_suffixes = (partial(call_added, backbone) if adds_early else backbone)(
        **{"position_ids": origin[plan.member, columns:], **inputs(take_positions(plan.suffixes))},
        attention_mask=(origin >= 0)[plan.member] if padded else None,
        **cache_argument(backbone, suffix),
        use_cache=True,
        **options,
    )
    last = (torch.arange(len(plan.length), device=plan.length.device) * columns + plan.length - 1)[plan.member]
    pairs = zip(states_of(of_prefixes), states_of(of_suffixes), strict=True)
    return tuple(torch.cat((first.flatten(0, 1).index_select(0, last)[:, None], rest), 1) for first, rest in pairs)


class _PrefixCache(PastCache):
    """Stores the keys and values of every layer, with their gradients."""

    def __init__(self) -> None:
        super().__init__(past=0)
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self.stored[layer_idx] = key_states, value_states
        return key_states, value_states


class _SuffixCache(PastCache):
    """Puts the keys and values of a prefix before those of each row that has this prefix.

    `origin` [prefixes, columns] is the column from which each column is taken. Columns before a prefix hold its first
    token: it is finite, and masked.
    """

    def __init__(self, prefix: _PrefixCache, member: Tensor, origin: Tensor | None, columns: int) -> None:
        super().__init__(past=columns)
        self.stored, self.member, self.origin = prefix.stored, member, origin

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        pairs = zip(self.stored[layer_idx], (key_states, value_states), strict=True)
        return tuple(torch.cat((self._of_members(stored), states), -2) for stored, states in pairs)

    def _of_members(self, stored: Tensor) -> Tensor:
        moved = stored if self.origin is None else torch.take_along_dim(stored, self.origin[:, None, :, None], 2)
        # `embedding` is `index_select`, with a faster gradient: that of `cat` has gaps.
        return functional.embedding(self.member, moved.flatten(1)).unflatten(1, moved.shape[1:])


@torch.no_grad()
def can_share(causal: PreTrainedModel) -> bool:
    """Whether prefix and suffix give the same hidden states as the whole row; tested on a few tokens."""
    if unsupported_layers(causal):
        return False
    weight: Any = causal.get_input_embeddings().weight
    tokens = (torch.arange(32, device=weight.device) % len(weight)).reshape(4, 8)
    tokens[1:3, :5] = tokens[0, :5]
    action = torch.arange(8, device=weight.device) >= torch.tensor([5, 5, 5, 4], device=weight.device)[:, None]
    backbone, group = decoder_of(causal), action.sum(-1)
    unsplit = backbone(input_ids=tokens, use_cache=False).last_hidden_state
    try:
        split = states(backbone, plan(tokens, action, group), token_inputs(tokens))[0][:, :4]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # whatever a model says to a cache
        return False
    return equal_up_to_rounding(split, torch.cat((unsplit[:3, 4:], unsplit[3:, 3:7])))
