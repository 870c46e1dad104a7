"""Changes of a batch that an algorithm must not notice, or must survive: what the laws are made of."""

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
    "agree",
    "cast",
    "compact",
    "drive_apart",
    "exaggerate",
    "on_policy",
    "pad",
    "poison",
    "raise_scores",
    "rename",
    "scale",
    "take",
    "uncount",
]


def cast(batch: TensorDict, dtype: torch.dtype) -> TensorDict:
    """Every float field as `dtype`."""
    return with_fields(batch, **{name: value.to(dtype) for name, value in _floats(batch).items()})


def uncount(batch: TensorDict) -> TensorDict:
    """Nothing counts any more."""
    return with_fields(batch, mask=torch.zeros_like(batch["mask"]))


def pad(batch: TensorDict) -> TensorDict:
    """Three more columns, and one more row, without a token, in a group of its own. They hold garbage."""
    draw = torch.Generator().manual_seed(0)
    padded = {name: _pad(value, (1,) if name in ROW_FIELDS else (1, 3), draw) for name, value in batch.items()}
    for name in _labels(batch):
        padded[name][-1] = batch[name].max() + 1
    return TensorDict(padded, batch_size=[len(batch["row"]) + 1])


def _pad(value: Tensor, more: tuple[int, ...], draw: torch.Generator) -> Tensor:
    shape = [size + extra for size, extra in zip_longest(value.shape, more, fillvalue=0)]
    # Garbage, but no bool is true where there is no token: that would be a mask outside of `attention_mask`.
    garbage = torch.randint(1, 9, shape, generator=draw) * (value.dtype != torch.bool)
    padded = garbage.to(value.dtype)
    padded[tuple(slice(size) for size in value.shape)] = value
    return padded


def compact(batch: TensorDict) -> tuple[TensorDict, Tensor]:
    """Only the first token of a row and its action tokens, rewards folded back; and where each column came from."""
    keep = batch["action"].clone()
    keep[:, 0] = True  # Something has to precede the first action token.
    origin = torch.argsort(~keep, dim=-1, stable=True)[:, : keep.sum(-1).max()]
    folded = {"reward": _fold(batch)} if "reward" in batch.keys() else {}
    batch = with_fields(batch, attention_mask=keep, **folded)
    return with_fields(
        batch, **{name: take(value, origin) for name, value in batch.items() if name not in ROW_FIELDS}
    ), origin


def take(value: Tensor, origin: Tensor) -> Tensor:
    """The columns of `value`, [rows, time] and maybe more axes, that `origin` says."""
    return value[torch.arange(len(value))[:, None], origin]


def _fold(batch: TensorDict) -> Tensor:
    """Rewards moved to the action token before them, or to the first one where there is none before."""
    folded = torch.zeros_like(batch["reward"])
    for row, (action, there) in enumerate(zip(batch["action"], batch["attention_mask"], strict=True)):
        places = action.nonzero()[:, 0].tolist()
        for time in there.nonzero()[:, 0].tolist():
            for place in [place for place in places if place <= time][-1:] or places[:1]:
                folded[row, place] += batch["reward"][row, time]
    return folded


def rename(batch: TensorDict) -> TensorDict:
    """Other labels, of both signs and up to 2**62, in another order. Two of them hardly ever agree."""
    return with_fields(batch, **{name: _rename(batch[name]) for name in _labels(batch)})


def _rename(labels: Tensor) -> Tensor:
    known, index = labels.unique(return_inverse=True)
    draw = random.Random(0)
    return torch.tensor([draw.randrange(-(2**62), 2**62) for _ in known])[index]


def poison(batch: TensorDict, where: Tensor) -> TensorDict:
    """NaN in floats outside `where`, or of rows that `where` leaves empty; 2**40 in integers outside `where`."""
    keep = {name: where.any(-1) if name in ROW_FIELDS else where for name in batch.keys()}
    # Axes beyond those of `keep` follow it.
    kept = {n: keep[n].reshape(keep[n].shape + (1,) * (v.ndim - keep[n].ndim)) for n, v in batch.items()}
    floats = {name: value.where(kept[name], torch.nan) for name, value in _floats(batch).items()}
    tokens = {str(n): v for n, v in batch.items() if n not in ROW_FIELDS and v.dtype == torch.int64}
    integers = {name: value.where(kept[name], 2**40) for name, value in tokens.items()}
    return with_fields(batch, **floats, **integers)


def drive_apart(batch: TensorDict) -> TensorDict:
    """1e3 nats more or less, by chance, on every log-probability."""
    draw = torch.Generator().manual_seed(0)
    logps = {n: v for n, v in batch.items() if FIELDS[n].unit == "nats" and n != "entropy"}
    return with_fields(
        batch, **{n: v + 2e3 * (torch.rand(v.shape, generator=draw) < 0.5) - 1e3 for n, v in logps.items()}
    )


def agree(batch: TensorDict) -> TensorDict:
    """All policies give all tokens the same log-probability."""
    return _sharing(batch, _POLICIES)


def on_policy(batch: TensorDict) -> TensorDict:
    """As `agree`, but for a teacher and a reward model: what makes a reward of theirs stays as it is."""
    return _sharing(batch, [name for name in _POLICIES if name not in ("teacher_logp", "reward_model_logp")])


def _sharing(batch: TensorDict, names: Iterable[str]) -> TensorDict:
    there = [name for name in names if name in batch.keys()]
    shared = next((batch[name] for name in there), None)
    return with_fields(batch, **dict.fromkeys(there, shared))


_POLICIES = [f.name for f in FIELDS.values() if f.unit == "nats" and f.axes == "rows time" and "entropy" not in f.name]


def exaggerate(batch: TensorDict, rows: Tensor) -> TensorDict:
    """Every float of `rows` a million times as large, and something more in each row, lest they be equal."""
    place = torch.arange(len(rows), dtype=torch.float64)
    extreme = {name: 1e6 * value + _beside(place, value) for name, value in _floats(batch).items()}
    return with_fields(
        batch, **{name: value.where(_beside(rows, value), batch[name]) for name, value in extreme.items()}
    )


def scale(batch: TensorDict, factor: float) -> TensorDict:
    """Rewards, and what estimates them, in another unit."""
    return with_fields(batch, **{n: v * factor for n, v in batch.items() if FIELDS[n].unit == "reward"})


def raise_scores(batch: TensorDict) -> TensorDict:
    """Every row scores more, by whatever it is scored: rows of a group by as much, another group by another amount."""
    more = batch["group"].unique(return_inverse=True)[1].double() / 2 + 1
    scores = {n: v for n, v in batch.items() if n in ROW_FIELDS and FIELDS[n].unit == "reward"}
    raised = {name: value + _beside(more, value) for name, value in scores.items()}
    if "reward" in batch.keys():
        raised["reward"] = batch["reward"] + at_last_action(more, batch["action"])
    return with_fields(batch, **raised)


def _beside(of_rows: Tensor, value: Tensor) -> Tensor:
    """`of_rows`, [rows], with as many axes as `value` has."""
    return of_rows.reshape(-1, *(1,) * (value.ndim - 1))


def _floats(batch: TensorDict) -> dict:
    return {name: value for name, value in batch.items() if value.is_floating_point()}


def _labels(batch: TensorDict) -> list:
    return [name for name in batch.keys() if FIELDS[name].unit == "label"]
