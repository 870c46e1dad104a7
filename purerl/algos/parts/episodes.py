"""The batch of episodes: a batch that has one row for each episode, in place of the rows that the episode consists of.

An episode has several rows if an agent's context is rewritten: what follows is a new row. Estimators and selections see
the batch of episodes, so an episode counts once, and its rewards are added up, whatever an estimator computes. Their
results are given to all rows of the episode.

The rows of an episode are joined in the order of `row`. Only action tokens are joined, because tokens between action
tokens have no effect. The next action token after the last one of a row is the first one of the next row: returns,
generalized advantage estimates, steps and positions continue there. A reward on a token that is not an action counts at
the action token before it in its row, and before the first action token of the row at this one.

    components    the sum over the rows
    truncated     that of the last row
    other fields with a value per row: that of the first row
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from purerl.algos.parts.actions import action_index
from purerl.algos.parts.groups import group_index
from purerl.algos.parts.zeros import zero_outside_actions
from purerl.batch import FIELDS, ROW_FIELDS, STRUCTURE, with_fields
from purerl.kernels.masks import any_true, count_true, masked
from purerl.types import Count, TensorDict, TokenBool

__all__ = [
    "EpisodeIndex",
    "count_rows",
    "join_episodes",
    "rows_in_part",
    "rows_of_episodes",
    "split_episodes",
    "tokens_of_episodes",
    "write_episode_tokens",
]


class EpisodeIndex(NamedTuple):
    """The position of each row and token of a batch in the batch of its episodes.

    number         int64 [rows]: the row of the batch of episodes
    token          int64 [rows, time]: the position in this batch, whose rows are one after the other
    first, last    int64 [episodes]: the first and the last row of each episode
    shape          (episodes, length): the shape of the batch of episodes
    """

    number: torch.Tensor
    token: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    shape: tuple[int, int]


# --- the advantage -----------------------------------------------------------------------------------------------


def join_episodes(
    batch: TensorDict, reads: Iterable[str], shape: tuple[int, int] | None
) -> tuple[TensorDict, EpisodeIndex | None]:
    """Return the batch that an estimator gets, and its index. The index is None for a batch without `episode`.

    Floats are set to 0 by `zero_outside_actions`. The batch of episodes has the fields of `STRUCTURE` and `reads`. Its
    `shape` is (episodes, length), read from the values if it is None. It may be larger: the rest has no tokens.
    """
    if "episode" not in batch.keys():
        return zero_outside_actions(batch), None
    from tensordict import TensorDict

    index = _index(batch, shape)
    names = [name for name in (*STRUCTURE, *reads) if name != "attention_mask"]
    fields = {name: _along(name, batch[name], _joined, batch, index) for name in names}
    size = [*batch.batch_size[:-1], index.shape[0]]
    return zero_outside_actions(TensorDict(fields | {"attention_mask": fields["action"]}, batch_size=size)), index


def split_episodes(batch: TensorDict, before: TensorDict, after: TensorDict, index: EpisodeIndex | None) -> TensorDict:
    """Return `batch` with the fields of the batch of episodes that are not the same in `before` and `after`.

    A field of tokens is 0 outside of action tokens. Without an index, the result is `after`.
    """
    if index is None:
        return after
    changed = {name: value for name, value in after.items() if name not in before.keys() or value is not before[name]}
    return with_fields(batch, **{name: _along(name, value, _split, batch, index) for name, value in changed.items()})


def rows_of_episodes(value: torch.Tensor, index: EpisodeIndex | None) -> torch.Tensor:
    """Give the value of each episode to its rows: [episodes] -> [rows]. Without an index, it is that of the row."""
    return value if index is None else value.gather(-1, index.number.expand(*value.shape[:-1], -1))


# --- the loss ----------------------------------------------------------------------------------------------------


def write_episode_tokens(step: TensorDict, where: Sequence[str]) -> TensorDict:
    """Write `episode_tokens`: for each of the masks named `where`, the number of its tokens in the row's episode."""
    if "episode" not in step.keys():
        return step
    number = group_index(step["episode"])
    tokens = [_sum_of_episodes(count_true(step[name]), number) for name in where]
    return with_fields(step, episode_tokens=torch.stack(tokens, -1))


def tokens_of_episodes(part: TensorDict, term: int) -> torch.Tensor | tuple[()]:
    """Return `episode_tokens` of one term, [rows]; () if there is no such field."""
    return part["episode_tokens"][..., term] if "episode_tokens" in part.keys() else ()


def count_rows(step: TensorDict, where: str) -> Count:
    """Count the rows with a token in the mask named `where`. The rows of an episode count as one."""
    counted = any_true(step[where])
    if "episode" not in step.keys():
        return count_true(counted)
    rows = torch.zeros_like(step["episode"]).scatter_add(-1, group_index(step["episode"]), counted.long())
    return (rows > 0).sum(-1)


def rows_in_part(mask: TokenBool, row_tokens: torch.Tensor | tuple[()] | None) -> torch.Tensor:
    """Count the rows with a token in `mask`. A row of an episode counts as its fraction of the episode's tokens.

    >>> mask = torch.tensor([[True, True], [True, False], [False, False]])
    >>> rows_in_part(mask, ()), rows_in_part(mask, torch.tensor([2, 4, 4]))
    (tensor(2), tensor(1.2500, dtype=torch.float64))
    """
    if not isinstance(row_tokens, torch.Tensor):
        return count_true(any_true(mask))
    return (count_true(mask).double() / row_tokens.clamp(min=1)).sum(-1)


# --- positions ---------------------------------------------------------------------------------------------------


def _index(batch: TensorDict, shape: tuple[int, int] | None) -> EpisodeIndex:
    action, length = batch["action"], count_true(batch["action"])
    number = group_index(batch["episode"])
    tokens = _sum_of_episodes(length, number)
    episodes, longest = _shape(number, tokens) if shape is None else shape
    order = (number * length.shape[-1] + group_index(batch["row"])).argsort(-1)
    ordered, ordered_length = number.gather(-1, order), length.gather(-1, order)
    is_new = ordered[..., 1:] != ordered[..., :-1]
    is_first = torch.nn.functional.pad(is_new, (1, 0), value=True)
    is_last = torch.nn.functional.pad(is_new, (0, 1), value=True)
    before = ordered_length.cumsum(-1) - ordered_length
    start = torch.where(is_first, before, 0).cummax(-1).values
    offset = torch.zeros_like(length).scatter(-1, order, before - start)
    # A reward in a row without action tokens counts at the last action token of its episode.
    column = torch.minimum(offset.unsqueeze(-1) + action_index(action), (tokens.unsqueeze(-1) - 1).clamp(min=0))
    empty = length.new_zeros((*length.shape[:-1], episodes))
    first, last = (empty.scatter_add(-1, ordered, torch.where(edge, order, 0)) for edge in (is_first, is_last))
    return EpisodeIndex(number, number.unsqueeze(-1) * longest + column, first, last, (episodes, longest))


def _sum_of_episodes(count: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(count).scatter_add(-1, number, count).gather(-1, number)


def _shape(number: torch.Tensor, tokens: torch.Tensor) -> tuple[int, int]:
    return (int(number.max()) + 1, max(1, int(tokens.max()))) if number.numel() else (0, 1)


def _along(name: str, value: torch.Tensor, function: Callable, batch: TensorDict, index: EpisodeIndex) -> torch.Tensor:
    """`function` of a field, for each entry of its additional axis if it has one."""
    if len(FIELDS[name].axes.split()) > (1 if name in ROW_FIELDS else 2):
        return function(name, value.movedim(-1, 0), batch, index).movedim(0, -1)
    return function(name, value, batch, index)


def _joined(name: str, value: torch.Tensor, batch: TensorDict, index: EpisodeIndex) -> torch.Tensor:
    if name == "components":
        return _sum_at(index.number, value, index.shape[:1])
    if name in ROW_FIELDS:
        row = index.last if name == "truncated" else index.first
        return value.gather(-1, row.expand(*value.shape[:-1], -1))
    where = batch["attention_mask"] if name == "reward" else batch["action"]
    number = value.to(torch.uint8) if value.dtype == torch.bool else value
    return _sum_at(index.token.flatten(-2), torch.where(where, number, 0).flatten(-2), index.shape).to(value.dtype)


def _sum_at(position: torch.Tensor, value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Add up `value` at each position of a flat tensor, and return it in `shape`."""
    zeros = value.new_zeros((*value.shape[:-1], math.prod(shape)))
    return zeros.scatter_add(-1, position.expand(value.shape), value).unflatten(-1, shape)


def _split(name: str, value: torch.Tensor, batch: TensorDict, index: EpisodeIndex) -> torch.Tensor:
    if name in ROW_FIELDS:
        return rows_of_episodes(value, index)
    flat = value.flatten(-2).gather(-1, index.token.flatten(-2).expand(*value.shape[:-2], -1))
    return masked(flat.unflatten(-1, batch["action"].shape[-2:]), batch["action"]).to(value.dtype)
