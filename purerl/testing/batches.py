"""Test batches for algorithms, generated from a seed or by Hypothesis.

A layout describes the shape of a batch. It is a tuple of (group label, row) pairs, one for each row. A row is a string
with one character for each token:

    .   not an action token: prompt or tool output
    a   an action token with `mask` 1 (counted)
    x   an action token with `mask` 0 (masked out)

`example_batch` fills a layout with values that make violations of a law visible: rewards on any token of a row, both
small and large differences between policies, and nonzero values in positions that an algorithm must not read. The same
layout and seed always give the same batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm
from purerl.batch import FIELDS, ROW_FIELDS, STRUCTURE, Field, collate, with_fields
from purerl.errors import ConfigError, nearest
from purerl.system.installation import install_command
from purerl.testing.plain_loss import PlainLoss

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["STRICT_SEED", "Layout", "example_batch", "fields_of", "layouts", "random_layout"]

Layout = tuple[tuple[int, str], ...]

# Sparse, negative and large: an algorithm must not use labels as indices.
_LABELS = (-7, 3, 2**40, -(2**62))
_GROUP_SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8)
_MAX_ROW_LENGTH = 7

STRICT_SEED = 383
"""The seed of a layout and a batch on which each law detects all broken algorithms of property_tests/mutants.py."""


def fields_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The fields that a batch must have to run `algorithm`.

    These are the fields that it reads and the model outputs that it uses, except the fields that it writes itself. A
    plain loss writes none.
    """
    objectives = (*algorithm.before, *algorithm.objectives)
    used = [*algorithm.reads, *(name for o in objectives for name in (*o.reads, *o.outputs, *o.metric_outputs))]
    is_plain = any(isinstance(objective, PlainLoss) for objective in algorithm.objectives)
    own_writers = () if is_plain else ("estimator", "prepare")
    return tuple(dict.fromkeys(name for name in used if name not in FIELDS or FIELDS[name].writer not in own_writers))


# --- layouts -----------------------------------------------------------------------------------------------------


def random_layout(seed: int, *, pairs: bool = False) -> Layout:
    """A layout with rows of different lengths in one to four groups, in random order.

    A group has one to eight rows. With `pairs`, every group has two.
    """
    rng = random.Random(seed)
    sizes = {label: rng.choice(_GROUP_SIZES) for label in rng.sample(_LABELS, rng.randint(1, len(_LABELS)))}
    labels = _row_labels(dict.fromkeys(sizes, 2) if pairs else sizes)
    rng.shuffle(labels)
    return tuple((label, "." + "".join(rng.choices(".aax", k=rng.randint(0, _MAX_ROW_LENGTH)))) for label in labels)


def layouts(*, pairs: bool = False) -> SearchStrategy[Layout]:
    """A Hypothesis strategy for layouts like those of `random_layout`, with arbitrary labels.

    It shrinks to a small number of short rows.

    Raises: ConfigError if Hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError as error:
        raise ConfigError("layouts() needs Hypothesis", do=install_command("testing")) from error

    label, size = st.integers(-(2**62), 2**62), st.just(2) if pairs else st.integers(1, max(_GROUP_SIZES))
    row = st.text("ax.", max_size=_MAX_ROW_LENGTH).map(".".__add__)
    sizes = st.dictionaries(label, size, min_size=1, max_size=len(_LABELS))
    labels = sizes.map(_row_labels).flatmap(st.permutations)
    return labels.flatmap(lambda drawn: st.tuples(*(st.tuples(st.just(label), row) for label in drawn)))


def _row_labels(sizes: dict[int, int]) -> list[int]:
    return [label for label, size in sizes.items() for _ in range(size)]


# --- values ------------------------------------------------------------------------------------------------------


def example_batch(
    fields: Iterable[str], layout: Layout, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> TensorDict:
    """A batch of `layout` with `fields` and the fields of `STRUCTURE`. Float fields have the dtype `dtype`.

    The log-probabilities of two policies differ by small amounts in some rows and by large amounts in others. Rewards
    are multiples of 1/8. Their sums are exact in any order, so a law cannot fail because of rounding in a sum.

    Raises: ConfigError for a field that is not in the schema.

    >>> example_batch(["chosen"], ((4, "..aa"), (4, ".ax")))["mask"].int()
    tensor([[0, 0, 1, 1],
            [0, 1, 0, 0]], dtype=torch.int32)
    """
    batch = collate([_row(index, label, kinds) for index, (label, kinds) in enumerate(layout)])
    rng = torch.Generator().manual_seed(seed)
    base = _uniform(batch["mask"].shape, rng, 0.05, 4.0)
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"unknown field {name!r}", do=nearest(name, FIELDS))
        if name not in (*STRUCTURE, "tokens"):
            value = _value(FIELDS[name], batch, base, rng)
            batch = with_fields(batch, **{name: value.to(dtype) if value.is_floating_point() else value})
    return batch


def _row(index: int, label: int, kinds: str) -> dict[str, Any]:
    return {
        "tokens": list(range(len(kinds))),
        "action": [kind in "ax" for kind in kinds],
        "mask": [kind == "a" for kind in kinds],
        "row": index,
        "group": label,
    }


def _value(field: Field, batch: TensorDict, base: Tensor, rng: torch.Generator) -> Tensor:
    """Random values for `field`: from its function in `_VALUES`, or chosen by its unit and dtype."""
    shape = batch["row"].shape if field.name in ROW_FIELDS else batch["mask"].shape
    # An additional axis has size 3.
    shape += (3,) * (len(field.axes.split()) - len(shape))
    if field.name in _VALUES:
        return _VALUES[field.name](batch, rng)
    if field.unit == "nats" and field.name not in ROW_FIELDS:
        scales = torch.tensor([3e-4, 0.1, 0.6], dtype=torch.float64)  # each row draws one of them
        scale = scales[torch.randint(0, 3, shape[:1], generator=rng)][:, None]
        return -base * torch.exp(scale * _normal(shape, rng))
    if field.unit in ("nats", "reward"):
        return _normal(shape, rng)
    if field.dtype.is_floating_point:
        return _uniform(shape, rng, 0.5, 1.5)
    return torch.randint(0, 4, shape, generator=rng).to(field.dtype)


def _entropy(batch: TensorDict, rng: torch.Generator) -> Tensor:
    return _uniform(batch["mask"].shape, rng, 0.0, 3.0)


def _reward(batch: TensorDict, rng: torch.Generator) -> Tensor:
    """Either outcome rewards (0 or 1 on the last action token) or dense rewards on any token, for the whole batch."""
    action, attention_mask = batch["action"], batch["attention_mask"]
    last = action & (action.flip(-1).cumsum(-1).flip(-1) == 1)
    outcome = torch.randint(0, 2, action.shape, generator=rng) * last
    dense = torch.randint(-8, 9, action.shape, generator=rng) * (_uniform(action.shape, rng, 0.0, 1.0) < 0.5) / 8
    is_outcome = torch.randint(0, 2, (), generator=rng) == 0
    return torch.where(attention_mask, torch.where(is_outcome, outcome, dense), _normal(action.shape, rng))


def _chosen(batch: TensorDict, rng: torch.Generator) -> Tensor:
    """One row of each group, drawn uniformly."""
    group, number = batch["group"], torch.rand(batch["row"].shape, generator=rng)
    same_group = group[:, None] == group
    return number == torch.where(same_group, number, 0).amax(-1)


def _episode(batch: TensorDict, rng: torch.Generator) -> Tensor:
    group = batch["group"].unique(return_inverse=True)[1]
    return 2 * group + torch.randint(0, 2, group.shape, generator=rng)


def _topk(batch: TensorDict, rng: torch.Generator) -> Tensor:
    """The log-probabilities of three tokens from a vocabulary of four, so that they do not sum to 1."""
    return _normal((*batch["mask"].shape, 4), rng).log_softmax(-1)[..., :3]


def _zero_or_one(batch: TensorDict, rng: torch.Generator) -> Tensor:
    return torch.randint(0, 2, batch["row"].shape, generator=rng).double()


def _ranking(batch: TensorDict, rng: torch.Generator) -> Tensor:
    """One of three ranks, or none (NaN) for a quarter of the rows."""
    rank = torch.randint(0, 4, batch["row"].shape, generator=rng).double()
    return rank.masked_fill(rank == 3, torch.nan)


_VALUES = {
    "correctness": _zero_or_one,
    "hack": _zero_or_one,
    "ranking": _ranking,
    "entropy": _entropy,
    "old_entropy": _entropy,
    "noise": lambda batch, rng: _uniform(batch["mask"].shape, rng, 0.0, 1.0),
    "reward": _reward,
    "chosen": _chosen,
    "episode": _episode,
    "teacher_topk_logp": _topk,
    "topk_logp": _topk,
}


def _uniform(shape: torch.Size, rng: torch.Generator, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=rng, dtype=torch.float64)


def _normal(shape: torch.Size, rng: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=torch.float64)
