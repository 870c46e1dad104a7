"""Batches to try an algorithm on: drawn from a seed, or by Hypothesis.

A layout says how a batch is made, one (group label, row) pair for each row, with one character for each token:

    .   not the policy's: a prompt, the output of a tool
    a   an action token that counts
    x   an action token that is masked out

`example_batch` fills a layout with values. They are there to make laws bite: rewards on any token of a row, policies
that have hardly moved and policies that have moved far, and garbage instead of zeros where nothing may be read. A seed
and a layout always make the same batch.
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

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["Layout", "example_batch", "fields_of", "layouts", "random_layout"]

Layout = tuple[tuple[int, str], ...]

# Sparse, negative and large: labels are names, and nothing may be counted from them.
_LABELS = (-7, 3, 2**40, -(2**62))
_SIZES = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8)
_LENGTH = 7


def fields_of(algorithm: Algorithm) -> tuple[str, ...]:
    """The fields that `algorithm` needs in a batch: what it reads or asks of a model, and does not write itself."""
    objectives = (*algorithm.before, *algorithm.objectives)
    asked = [*algorithm.reads, *(name for o in objectives for name in (*o.reads, *o.outputs, *o.metric_outputs))]
    written = ("estimator", "prepare")
    return tuple(dict.fromkeys(name for name in asked if name not in FIELDS or FIELDS[name].writer not in written))


# --- layouts -----------------------------------------------------------------------------------------------------


def random_layout(seed: int, *, pairs: bool = False) -> Layout:
    """Ragged rows in up to four groups of one to eight; or, with `pairs`, in so many groups of two. In any order."""
    draw = random.Random(seed)
    groups = {label: draw.choice(_SIZES) for label in draw.sample(_LABELS, draw.randint(1, len(_LABELS)))}
    labels = _of_rows(dict.fromkeys(groups, 2) if pairs else groups)
    draw.shuffle(labels)
    return tuple((label, "." + "".join(draw.choices(".aax", k=draw.randint(0, _LENGTH)))) for label in labels)


def layouts(*, pairs: bool = False) -> SearchStrategy[Layout]:
    """The same as a Hypothesis strategy, with any labels; it shrinks to few short rows.

    Raises: ConfigError without Hypothesis.
    """
    try:
        from hypothesis import strategies as st
    except ImportError as error:
        raise ConfigError("layouts() needs Hypothesis", do="pip install 'purerl[testing]'") from error

    label, size = st.integers(-(2**62), 2**62), st.just(2) if pairs else st.integers(1, max(_SIZES))
    row = st.text("ax.", max_size=_LENGTH).map(".".__add__)
    labels = st.dictionaries(label, size, min_size=1, max_size=len(_LABELS)).map(_of_rows).flatmap(st.permutations)
    return labels.flatmap(lambda drawn: st.tuples(*(st.tuples(st.just(label), row) for label in drawn)))


def _of_rows(groups: dict[int, int]) -> list[int]:
    """The label of each row, from the size of each group."""
    return [label for label, size in groups.items() for _ in range(size)]


# --- values ------------------------------------------------------------------------------------------------------


def example_batch(
    fields: Iterable[str], layout: Layout, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> TensorDict:
    """A batch of `layout` with the fields of `STRUCTURE` and `fields`, every float of it a `dtype`.

    Log-probabilities of different policies differ by a drift that is tiny on some rows and large on others. Rewards are
    multiples of 1/8: sums of them are exact in any order, so that no law fails on a comparison of two rounded sums.

    Raises: ConfigError for a field that is not in the schema.

    >>> example_batch(["chosen"], ((4, "..aa"), (4, ".ax")))["mask"].int()
    tensor([[0, 0, 1, 1],
            [0, 1, 0, 0]], dtype=torch.int32)
    """
    batch = collate([_row(index, label, kinds) for index, (label, kinds) in enumerate(layout)])
    draw = torch.Generator().manual_seed(seed)
    base = _uniform(batch["mask"].shape, draw, 0.05, 4.0)
    for name in fields:
        if name not in FIELDS:
            raise ConfigError(f"unknown field {name!r}", do=nearest(name, FIELDS))
        if name not in (*STRUCTURE, "tokens"):
            value = _value(FIELDS[name], batch, base, draw)
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


def _value(field: Field, batch: TensorDict, base: Tensor, draw: torch.Generator) -> Tensor:
    """A value for `field`: its own where it has one, else one that suits its unit and dtype."""
    shape = batch["row"].shape if field.name in ROW_FIELDS else batch["mask"].shape
    # An axis of its own is there three times.
    shape += (3,) * (len(field.axes.split()) - len(shape))
    if field.name in _OWN:
        return _OWN[field.name](batch, draw)
    if field.unit == "nats":
        return -base * torch.exp(_drift(shape, draw))
    if field.unit == "reward":
        return _normal(shape, draw)
    if field.dtype.is_floating_point:
        return _uniform(shape, draw, 0.5, 1.5)
    return torch.randint(0, 4, shape, generator=draw).to(field.dtype)


def _drift(shape: torch.Size, draw: torch.Generator) -> Tensor:
    scales = torch.tensor([3e-4, 0.1, 0.6], dtype=torch.float64)
    return scales[torch.randint(0, 3, shape[:1], generator=draw)][:, None] * _normal(shape, draw)


def _entropy(batch: TensorDict, draw: torch.Generator) -> Tensor:
    return _uniform(batch["mask"].shape, draw, 0.0, 3.0)


def _reward(batch: TensorDict, draw: torch.Generator) -> Tensor:
    """In a batch of one kind 0 or 1 on the last action token; in one of the other kind anything on any token."""
    action, there = batch["action"], batch["attention_mask"]
    last = action & (action.flip(-1).cumsum(-1).flip(-1) == 1)
    outcome = torch.randint(0, 2, action.shape, generator=draw) * last
    shaped = torch.randint(-8, 9, action.shape, generator=draw) * (_uniform(action.shape, draw, 0.0, 1.0) < 0.5) / 8
    kind = torch.randint(0, 2, (), generator=draw) == 0
    return torch.where(there, torch.where(kind, outcome, shaped), _normal(action.shape, draw))


def _chosen(batch: TensorDict, draw: torch.Generator) -> Tensor:
    """One row of each group, drawn with equal chances."""
    group, ticket = batch["group"], torch.rand(batch["row"].shape, generator=draw)
    rivals = group[:, None] == group
    return ticket == torch.where(rivals, ticket, 0).amax(-1)


def _topk(batch: TensorDict, draw: torch.Generator) -> Tensor:
    """Of three tokens in four: what is left over is that of all others."""
    return _normal((*batch["mask"].shape, 4), draw).log_softmax(-1)[..., :3]


def _noise(batch: TensorDict, draw: torch.Generator) -> Tensor:
    return _uniform(batch["mask"].shape, draw, 0.0, 1.0)


_OWN = {
    "entropy": _entropy,
    "old_entropy": _entropy,
    "noise": _noise,
    "reward": _reward,
    "chosen": _chosen,
    "teacher_topk_logp": _topk,
    "topk_logp": _topk,
}


def _uniform(shape: torch.Size, draw: torch.Generator, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=draw, dtype=torch.float64)


def _normal(shape: torch.Size, draw: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float64)
