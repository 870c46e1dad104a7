"""Rows of a group that begin alike: their common beginning goes through the model once.

    prefixes    the distinct beginnings, one for each group
    rests       what each row has beyond its own, read with the keys and values of its prefix before it

Eight completions of one prompt read it once instead of eight times, forward and backward: gradients of all eight flow
into the one. What comes out is the same up to rounding, for attention sees the same tokens at the same distances.

This file imports transformers, and is imported when a trainer is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from purerl.backends.hf.limits import strange_layers
from purerl.types import RowInt, TokenBool, TokenInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Plan", "plan", "shareable", "states"]

_WORTH = 0.9
"""Two passes over fewer tokens have to read at most this share of those that one pass would."""


class Plan(NamedTuple):
    """Which beginnings there are, and what is left of each row.

    number     [rows] of those rows that have an action token: 0, 1, ..., n - 1. The others are not read
    member     [n] the prefix of each
    length     [prefixes] tokens of each
    prefixes   [prefixes, columns], and rests [n, columns]: tokens, with anything at all behind their ends
    """

    number: Tensor
    member: Tensor
    length: Tensor
    prefixes: Tensor
    rests: Tensor


def plan(tokens: TokenInt, action: TokenBool, group: RowInt) -> Plan | None:
    """How to read `tokens`; None where reading each row by itself costs no more, or nearly so.

    A prefix ends before the first action token of its group at the latest: it holds no token that anything is asked of.
    """
    asked = action.any(-1)
    tokens, action, time = tokens[asked], action[asked], torch.arange(tokens.shape[1], device=tokens.device)
    labels, member = group[asked].unique(return_inverse=True)
    rows = len(tokens)
    if len(labels) == rows:
        return None
    leader = torch.full_like(labels, rows).scatter_reduce(0, member, torch.arange(rows).to(labels), "amin")
    alike = (tokens == tokens[leader][member]).cumprod(-1).sum(-1)
    first, last = torch.where(action, time, len(time)).amin(-1), torch.where(action, time, 0).amax(-1)
    length = torch.full_like(labels, len(time)).scatter_reduce(0, member, torch.minimum(alike, first), "amin")
    columns, left = int(length.max()), int((last - length[member]).max())
    read = len(labels) * columns + rows * left
    if int(length.min()) == 0 or read > _WORTH * rows * int(last.max()):
        return None
    return Plan(
        asked.cumsum(0) - 1,
        member,
        length,
        tokens[leader, :columns],
        tokens.gather(1, (time[:left] + length[member][:, None]).clamp(max=len(time) - 1)),
    )


def states(backbone: nn.Module, plan: Plan) -> Tensor:
    """Final hidden states [n, 1 + columns of rests, d]: of the last token of each row's prefix, and of its rest."""
    columns, left = plan.prefixes.shape[1], plan.rests.shape[1]
    prefix = _Prefix()
    hidden = backbone(input_ids=plan.prefixes, past_key_values=prefix, use_cache=True).last_hidden_state
    ends = torch.arange(len(hidden), device=hidden.device) * columns + plan.length - 1
    before = hidden.flatten(0, 1).index_select(0, ends[plan.member]).unsqueeze(1)
    if not left:
        return before
    # To the right end of its columns, so that rests follow at the distances that they have.
    origin = torch.arange(columns + left, device=hidden.device) - columns + plan.length[:, None]
    padded = bool((plan.length < columns).any())
    rest = backbone(
        input_ids=plan.rests,
        attention_mask=(origin >= 0)[plan.member] if padded else None,
        position_ids=origin[plan.member, columns:],
        past_key_values=_Rest(prefix, plan.member, origin[:, :columns].clamp(min=0) if padded else None, columns),
        use_cache=True,
    ).last_hidden_state
    return torch.cat((before, rest), 1)


class _Prefix(Cache):
    """Keeps the keys and values of every layer, with their gradients."""

    past = 0

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.past + query_length, 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self.kept[layer_idx] = key_states, value_states
        return key_states, value_states


class _Rest(_Prefix):
    """Puts what `prefix` kept before the keys and values of each of its members.

    `origin` [prefixes, columns] says from which of its columns each is taken: where a prefix does not fill them its
    first token stands in, which the mask hides, and which is finite.
    """

    def __init__(self, prefix: _Prefix, member: Tensor, origin: Tensor | None, columns: int) -> None:
        super().__init__()
        self.kept, self.member, self.origin, self.past = prefix.kept, member, origin, columns

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        key, value = self.kept[layer_idx]
        return torch.cat((self._of_members(key), key_states), -2), torch.cat(
            (self._of_members(value), value_states), -2
        )

    def _of_members(self, kept: Tensor) -> Tensor:
        moved = kept if self.origin is None else torch.take_along_dim(kept, self.origin[:, None, :, None], 2)
        return moved.index_select(0, self.member)


@torch.no_grad()
def shareable(causal: PreTrainedModel) -> bool:
    """Whether a model reads rows by prefix and rest as it reads them whole: asked once, on a few tokens."""
    if strange_layers(causal):
        return False
    weight = causal.get_output_embeddings().weight
    tokens = (torch.arange(60, device=weight.device) % len(weight)).reshape(5, 12)
    tokens[1:4, :8] = tokens[0, :8]
    action = torch.arange(12, device=weight.device) >= torch.tensor([8, 8, 8, 8, 6], device=weight.device)[:, None]
    backbone, group = causal.get_decoder(), action.sum(-1)
    whole = backbone(input_ids=tokens, use_cache=False).last_hidden_state
    try:
        split = states(backbone, plan(tokens, action, group))[:, :4]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # whatever a model says to a cache
        return False
    expected = torch.cat((whole[:4, 7:11], whole[4:, 5:9]))
    tolerance = 0.1 if whole.dtype.itemsize < 4 else 1e-3
    return float((split - expected).abs().max()) <= tolerance * float(whole.abs().max())
