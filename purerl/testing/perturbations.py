"""Changes to a batch that must not change the results of an algorithm, or must change them in a known way.

The laws compare the results on a batch with the results on a changed one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import zip_longest

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.parts.rows import at_last_action
from purerl.batch import FIELDS, ROW_FIELDS, with_fields

__all__ = [
    "add_extreme_log_ratios",
    "cast",
    "compact",
    "equalize_policies",
    "fill_outside",
    "gather_columns",
    "make_on_policy",
    "make_rows_extreme",
    "make_tokens_impossible",
    "mask_out_all_tokens",
    "pad",
    "randomize_labels",
    "regroup",
    "scale_rewards",
    "shift_scores",
    "split_rows",
]


# --- dtype, mask and padding -------------------------------------------------------------------------------------


def cast(batch: TensorDict, dtype: torch.dtype) -> TensorDict:
    """Convert every float field to `dtype`."""
    return with_fields(batch, **{name: value.to(dtype) for name, value in _float_fields(batch).items()})


def mask_out_all_tokens(batch: TensorDict) -> TensorDict:
    """Set `mask` to False at every token."""
    return with_fields(batch, mask=torch.zeros_like(batch["mask"]))


def pad(batch: TensorDict) -> TensorDict:
    """Append three columns, and one row without tokens in a new group. The padding holds nonzero values."""
    rng = torch.Generator().manual_seed(0)
    padded = {name: _pad(value, (1,) if name in ROW_FIELDS else (1, 3), rng) for name, value in batch.items()}
    for name in _label_fields(batch):
        padded[name][-1] = batch[name].max() + 1
    return TensorDict(padded, batch_size=[len(batch["row"]) + 1])


def _pad(value: Tensor, extra_sizes: tuple[int, ...], rng: torch.Generator) -> Tensor:
    shape = [size + extra for size, extra in zip_longest(value.shape, extra_sizes, fillvalue=0)]
    # Bool padding stays False. True would be an action token or a counted token outside of `attention_mask`.
    garbage = torch.randint(1, 9, shape, generator=rng) * (value.dtype != torch.bool)
    padded = garbage.to(value.dtype)
    padded[tuple(slice(size) for size in value.shape)] = value
    return padded


def fill_outside(batch: TensorDict, mask: Tensor) -> TensorDict:
    """Fill the positions outside `mask` with NaN (floats) or 2**40 (integers); `mask` is a bool tensor [rows, time].

    A float row field becomes NaN in the rows that have no position in `mask`. Integer row fields do not change.
    """
    keep = {name: mask.any(-1) if name in ROW_FIELDS else mask for name in batch.keys()}
    # Append axes of size 1 for fields with additional axes.
    keep = {n: keep[n].reshape(keep[n].shape + (1,) * (v.ndim - keep[n].ndim)) for n, v in batch.items()}
    floats = {name: value.where(keep[name], torch.nan) for name, value in _float_fields(batch).items()}
    token_ints = {str(n): v for n, v in batch.items() if n not in ROW_FIELDS and v.dtype == torch.int64}
    integers = {name: value.where(keep[name], 2**40) for name, value in token_ints.items()}
    return with_fields(batch, **floats, **integers)


# --- tokens that are not actions ---------------------------------------------------------------------------------


def compact(batch: TensorDict) -> tuple[TensorDict, Tensor]:
    """Remove all tokens except the first token and the action tokens of each row.

    Rewards of removed tokens move to an action token. The second result, [rows, new time], is the original column of
    each new column.
    """
    keep = batch["action"].clone()
    keep[:, 0] = True  # The first action token needs a token before it.
    columns = torch.argsort(~keep, dim=-1, stable=True)[:, : keep.sum(-1).max()]
    folded = {"reward": _fold_reward(batch)} if "reward" in batch.keys() else {}
    batch = with_fields(batch, attention_mask=keep, **folded)
    compacted = {name: gather_columns(value, columns) for name, value in batch.items() if name not in ROW_FIELDS}
    return with_fields(batch, **compacted), columns


def gather_columns(value: Tensor, columns: Tensor) -> Tensor:
    """value[row, columns[row]] for each row.

    Shapes: value [rows, time, ...], columns [rows, new time], result [rows, new time, ...].
    """
    return value[torch.arange(len(value))[:, None], columns]


def _fold_reward(batch: TensorDict) -> Tensor:
    """Move each reward to the last action token up to it, or to the first action token if there is none before it."""
    folded = torch.zeros_like(batch["reward"])
    for row, (action, attention_mask) in enumerate(zip(batch["action"], batch["attention_mask"], strict=True)):
        action_positions = action.nonzero()[:, 0].tolist()
        for time in attention_mask.nonzero()[:, 0].tolist():
            for position in [p for p in action_positions if p <= time][-1:] or action_positions[:1]:
                folded[row, position] += batch["reward"][row, time]
    return folded


# --- labels and groups -------------------------------------------------------------------------------------------


def randomize_labels(batch: TensorDict) -> TensorDict:
    """Replace every label by a random integer between -2**62 and 2**62. Equal labels stay equal.

    The labels in `row` keep their order, because it is the order of the rows of an episode.
    """
    return with_fields(batch, **{n: _randomize(batch[n], is_ordered=n == "row") for n in _label_fields(batch)})


def _randomize(labels: Tensor, *, is_ordered: bool) -> Tensor:
    unique, index = labels.unique(return_inverse=True)
    rng = random.Random(0)
    new = [rng.randrange(-(2**62), 2**62) for _ in unique]
    return torch.tensor(sorted(new) if is_ordered else new, dtype=torch.int64)[index]


def regroup(batch: TensorDict, size: int) -> TensorDict:
    """Assign the rows, in order, to groups of `size` rows. The last group may be smaller."""
    return with_fields(batch, group=torch.arange(len(batch["row"])) // size)


# --- episodes ----------------------------------------------------------------------------------------------------


def split_rows(batch: TensorDict) -> tuple[TensorDict, Tensor]:
    """Make each row an episode, and split it at up to two of its action tokens into rows of this episode, at random.

    Every part starts at the beginning of its row. What an earlier part ends with is context: its tokens are no actions
    and have no reward. The reward components of a row are those of its last part, and only this part is truncated. The
    second result is the row of the batch that each new row is a part of. New rows are in random order.
    """
    rng = torch.Generator().manual_seed(0)
    count, action = len(batch["row"]), batch["action"]
    is_cut = action & (action.cumsum(-1) > 1) & (torch.rand(action.shape, generator=rng) < 0.3)
    part_of_token = is_cut.cumsum(-1).clamp(max=2)
    last = part_of_token.amax(-1)
    origin, part = torch.cartesian_prod(torch.arange(count), torch.arange(3)).unbind(-1)
    origin, part = (value[part <= last[origin]] for value in (origin, part))
    is_own, is_last = part_of_token[origin] == part[:, None], part == last[origin]
    masks = {"action": is_own, "mask": is_own, "attention_mask": part_of_token[origin] <= part[:, None]}
    changed = {name: batch[name][origin] & mask for name, mask in masks.items()}
    for name, keep in {"reward": is_own, "components": is_last[:, None], "truncated": is_last}.items():
        if name in batch.keys():
            changed[name] = torch.where(keep, batch[name][origin], 0).to(batch[name].dtype)
    labels = {"row": 3 * origin + part, "episode": batch["row"][origin]}
    order = torch.randperm(len(origin), generator=rng)
    return with_fields(batch[origin], **changed, **labels)[order], origin[order]


# --- log-probabilities -------------------------------------------------------------------------------------------


def add_extreme_log_ratios(batch: TensorDict) -> TensorDict:
    """Add 1e3 or -1e3 nats, at random, to every value in nats except `entropy`."""
    rng = torch.Generator().manual_seed(0)
    logps = {n: v for n, v in batch.items() if FIELDS[n].unit == "nats" and n != "entropy"}
    return with_fields(
        batch, **{n: v + 2e3 * (torch.rand(v.shape, generator=rng) < 0.5) - 1e3 for n, v in logps.items()}
    )


def make_tokens_impossible(batch: TensorDict) -> TensorDict:
    """Set log-probabilities to -inf: at some tokens under all policies, at others under some of the policies.

    Tokens that are not counted are among them.
    """
    rng = torch.Generator().manual_seed(0)
    names = [str(name) for name in batch.keys() if FIELDS[name].unit == "nats" and "entropy" not in name]
    shared = torch.rand(batch["mask"].shape, generator=rng) < 0.2
    own = {name: torch.rand(batch[name].shape, generator=rng) < 0.2 for name in names}
    impossible = {n: (own[n] | shared.reshape(shared.shape + (1,) * (own[n].ndim - 2))) for n in names}
    return with_fields(batch, **{name: batch[name].masked_fill(impossible[name], -torch.inf) for name in names})


_LOGPS = [f.name for f in FIELDS.values() if f.unit == "nats" and f.axes == "rows time" and "entropy" not in f.name]


def equalize_policies(batch: TensorDict) -> TensorDict:
    """Give every token the same log-probability under all policies."""
    return _equalize(batch, _LOGPS)


def make_on_policy(batch: TensorDict) -> TensorDict:
    """Give every token the same log-probability under all policies except the teacher and the reward model.

    The log-probabilities of the teacher and the reward model define rewards, and rewards stay as they are.
    """
    return _equalize(batch, [name for name in _LOGPS if name not in ("teacher_logp", "reward_model_logp")])


def _equalize(batch: TensorDict, names: Iterable[str]) -> TensorDict:
    present = [name for name in names if name in batch.keys()]
    return with_fields(batch, **dict.fromkeys(present, next((batch[name] for name in present), None)))


# --- magnitudes --------------------------------------------------------------------------------------------------


def make_rows_extreme(batch: TensorDict, rows: Tensor) -> TensorDict:
    """Multiply every float of the rows where `rows` is True by 1e6, and add the index of the row.

    Adding the index makes rows differ that were equal.
    """
    index = torch.arange(len(rows), dtype=torch.float64)
    extreme = {name: 1e6 * value + _unsqueeze_like(index, value) for name, value in _float_fields(batch).items()}
    return with_fields(batch, **{n: v.where(_unsqueeze_like(rows, v), batch[n]) for n, v in extreme.items()})


def scale_rewards(batch: TensorDict, factor: float) -> TensorDict:
    """Multiply every field in the unit of rewards by `factor`: rewards, scores, values, and so on."""
    return with_fields(batch, **{n: v * factor for n, v in batch.items() if FIELDS[n].unit == "reward"})


def shift_scores(batch: TensorDict) -> TensorDict:
    """Add a constant to the scores of all rows of a group, a different constant for each group.

    The constant is added to every row field in the unit of rewards, and to `reward` at the last action token.
    """
    shift = batch["group"].unique(return_inverse=True)[1].double() / 2 + 1
    scores = {n: v for n, v in batch.items() if n in ROW_FIELDS and FIELDS[n].unit == "reward"}
    shifted = {name: value + _unsqueeze_like(shift, value) for name, value in scores.items()}
    if "reward" in batch.keys():
        shifted["reward"] = batch["reward"] + at_last_action(shift, batch["action"])
    return with_fields(batch, **shifted)


def _unsqueeze_like(row_value: Tensor, value: Tensor) -> Tensor:
    """`row_value`, [rows], with axes of size 1 appended until it has as many axes as `value`."""
    return row_value.reshape(-1, *(1,) * (value.ndim - 1))


def _float_fields(batch: TensorDict) -> dict:
    return {name: value for name, value in batch.items() if value.is_floating_point()}


def _label_fields(batch: TensorDict) -> list:
    return [name for name in batch.keys() if FIELDS[name].unit == "label"]
