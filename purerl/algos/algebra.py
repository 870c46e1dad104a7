"""The algebra: what an algorithm is, and the four verbs that run one.

An `Algorithm` is a tuple of functions of a batch. Four verbs give it its meaning, in this order:

    select(algorithm, batch)            which rows to keep; the loop draws others for the rest
    advantages(algorithm, state, batch) shaping, corrections, estimator: one `Transform` of the whole batch
    begin(objective, step)              on a whole optimizer step: `prepare`, then count what each term divides by
    evaluate(objective, part, counts)   the loss of any part of that step

Statistics are taken by the first three, over everything; `evaluate` only ever divides by the counts that it is given.
So the losses of the parts, in whatever way a step is cut into micro-batches and dealt to ranks, add up to the loss of
the step, and their gradients to its gradient.

Everything here is a NamedTuple of module-level functions and of `Bound` ones: it prints, pickles, hashes and compares
by value, and `_replace` makes a new algorithm out of an old one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.batch import ROW_FIELDS, with_fields
from purerl.kernels.masks import any_true, count_true
from purerl.types import RowBool, Scalar, TokenBool, TokenFloat

__all__ = [
    "Algorithm",
    "Bound",
    "Counts",
    "Objective",
    "State",
    "Term",
    "Transform",
    "Weighted",
    "advantages",
    "begin",
    "bind",
    "chain",
    "describe",
    "evaluate",
    "fingerprint",
    "identity",
    "keep_all",
    "merge",
    "neutralize",
    "no_metrics",
    "of_fields",
    "roles",
    "select",
    "stateless",
    "unchanged",
    "writes",
]

State = Any
"""The state of a transform: tensors, numbers, and tuples of them."""


# --- functions as data -------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """A function with keyword arguments filled in, equal to another by value (functools.partial compares identity)."""

    function: Callable
    keywords: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.keywords))


def bind(function: Callable, /, **keywords: Any) -> Bound:
    """`function` with `keywords` filled in.

    >>> bind(torch.clamp, min=0.0) == bind(torch.clamp, min=0.0)
    True
    """
    return Bound(function, tuple(sorted(keywords.items())))


def of_fields(function: Callable, /, *fields: str, **keywords: Any) -> Bound:
    """`function` of tensors as a function of a batch: batch -> function(*(batch[f] for f in fields), **keywords)."""
    return bind(_on, function=bind(function, **keywords), fields=fields)


def _on(batch: TensorDict, *, function: Callable, fields: tuple[str, ...]) -> Any:
    return function(*(batch[field] for field in fields))


def read(field: str) -> Bound:
    """`field` of a batch."""
    return of_fields(_itself, field)


def _itself(value: Tensor) -> Tensor:
    return value


def writes(field: str, function: Callable[[TensorDict], Tensor]) -> Bound:
    """The batch with `field` set to `function(batch)`."""
    return bind(_writes, field=field, function=function)


def _writes(batch: TensorDict, *, field: str, function: Callable) -> TensorDict:
    return with_fields(batch, **{field: function(batch)})


def describe(value: Any) -> str:
    """`value` in words that are the same in every process: functions by name, tuples part by part.

    >>> describe(of_fields(torch.clamp, "reward", min=0.0).keywords[0])
    "('fields', ('reward'))"
    """
    if isinstance(value, Bound):
        return f"{describe(value.function)}({', '.join(f'{k}={describe(v)}' for k, v in value.keywords)})"
    if isinstance(value, tuple):
        names = getattr(value, "_fields", ())
        parts = [f"{n}={describe(v)}" for n, v in zip(names, value, strict=True)] if names else map(describe, value)
        return f"{type(value).__name__ if names else ''}({', '.join(parts)})"
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)
    return repr(value)


def fingerprint(value: Any) -> str:
    """A hash of `value` that is the same in every process."""
    return hashlib.sha256(describe(value).encode()).hexdigest()


# --- what an algorithm is ----------------------------------------------------------------------------------------


class Transform(NamedTuple):
    """A pure function of the whole batch, with state: apply(state, batch) -> (state, batch)."""

    init: Callable[[], State]
    apply: Callable[[State, TensorDict], tuple[State, TensorDict]]


class Counts(NamedTuple):
    """What a term divides by: tokens that it covers, and rows with at least one, in a whole optimizer step."""

    tokens: Scalar
    rows: Scalar


class Weighted(NamedTuple):
    """A metric: a total and the weight that it is to be divided by, so that parts merge exactly."""

    total: Scalar
    weight: Scalar


class Term(NamedTuple):
    """One term of a loss: weight * reduce(loss(batch), batch[where], counts).

    `loss` gives a value [rows, time]; a loss of whole rows spreads its value over the row and chooses `reduce` to fit.
    `where` is the bool field that the term covers.
    """

    name: str
    loss: Callable[[TensorDict], TokenFloat]
    reduce: Callable[[TokenFloat, TokenBool, Counts], Scalar]
    where: str = "mask"
    weight: float = 1.0


def unchanged(batch: TensorDict) -> TensorDict:
    """The batch."""
    return batch


def no_metrics(batch: TensorDict) -> dict[str, Weighted]:
    """No metrics."""
    return {}


class Objective(NamedTuple):
    """What one model, in its `role`, minimizes in one optimizer step.

    reads     fields that its functions read, beside those of `STRUCTURE`
    outputs   what the forward pass supplies with gradient
    watches   what the forward pass supplies without gradient, for the metrics
    prepare   batch -> batch on the whole optimizer step, before any forward pass
    metrics   batch -> {name: Weighted}, without gradient
    unit      "row", or "group" where a loss couples the rows of a group: what a micro-batch must not cut
    """

    role: str
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    terms: tuple[Term, ...]
    watches: tuple[str, ...] = ()
    prepare: Callable[[TensorDict], TensorDict] = unchanged
    metrics: Callable[[TensorDict], Mapping[str, Weighted]] = no_metrics
    unit: str = "row"


def keep_all(batch: TensorDict) -> RowBool:
    """Keep every row."""
    return torch.ones_like(batch["row"], dtype=torch.bool)


class Algorithm(NamedTuple):
    """A reinforcement-learning (or preference, or imitation) algorithm.

    reads       fields that `select` and `advantage` read, beside those of `STRUCTURE`
    advantage   a `Transform` of the whole batch
    objectives  in the order in which models are updated
    select      batch -> rows to keep
    before      objectives of models that are updated before `advantage` runs
    """

    reads: tuple[str, ...]
    advantage: Transform
    objectives: tuple[Objective, ...]
    select: Callable[[TensorDict], RowBool] = keep_all
    before: tuple[Objective, ...] = ()
    min_group_size: int = 1


# --- transforms --------------------------------------------------------------------------------------------------


def _no_state() -> State:
    return ()


def _stateless(state: State, batch: TensorDict, *, function: Callable) -> tuple[State, TensorDict]:
    return state, function(batch)


def stateless(function: Callable[[TensorDict], TensorDict]) -> Transform:
    """A transform without state."""
    return Transform(_no_state, bind(_stateless, function=function))


def chain(*transforms: Transform) -> Transform:
    """One after the other, in the order that is written; its state is the tuple of theirs."""
    return Transform(
        bind(_chain_init, inits=tuple(t.init for t in transforms)),
        bind(_chain_apply, applies=tuple(t.apply for t in transforms)),
    )


def _chain_init(*, inits: tuple[Callable, ...]) -> State:
    return tuple(init() for init in inits)


def _chain_apply(state: State, batch: TensorDict, *, applies: tuple[Callable, ...]) -> tuple[State, TensorDict]:
    states = []
    for apply, part in zip(applies, state, strict=True):
        part, batch = apply(part, batch)
        states.append(part)
    return tuple(states), batch


identity = chain()
"""The transform that changes nothing: for algorithms without an advantage."""


# --- the verbs ---------------------------------------------------------------------------------------------------


def neutralize(batch: TensorDict, where: TokenBool) -> TensorDict:
    """`batch` with every float outside `where`, and every float of a row that `where` leaves empty, set to 0.

    What is masked out must be inert, and `torch.where` after the equation is too late: the gradient of
    where(mask, exp(x), 0) at an x of infinity is NaN. So it is done before, once, and equations stay bare.
    """
    rows = any_true(where)
    floats = {name: value for name, value in batch.items() if value.is_floating_point()}
    return with_fields(batch, **{name: _neutral(name, value, where, rows) for name, value in floats.items()})


def _neutral(name: str, value: Tensor, where: TokenBool, rows: RowBool) -> Tensor:
    keep = rows if name in ROW_FIELDS or value.ndim == rows.ndim else where
    return torch.where(keep.reshape(keep.shape + (1,) * (value.ndim - keep.ndim)), value, 0)


def select(algorithm: Algorithm, batch: TensorDict) -> RowBool:
    """Which rows of the whole batch `algorithm.select` keeps; it sees them as `advantages` does."""
    return algorithm.select(_neutral_rows(batch))


def advantages(algorithm: Algorithm, state: State, batch: TensorDict) -> tuple[State, TensorDict]:
    """Apply `algorithm.advantage` to the whole batch, neutralized.

    Recurrences follow action tokens, so those are what stays, in rows where anything counts at all. A reward stays
    wherever there is a token: an environment may leave it on a token that is not the policy's.
    """
    return algorithm.advantage.apply(state, _neutral_rows(batch))


def _neutral_rows(batch: TensorDict) -> TensorDict:
    counts = any_true(batch["mask"]).unsqueeze(-1)
    neutral = neutralize(batch, batch["action"] & counts)
    if "reward" in batch.keys():
        neutral = with_fields(neutral, reward=torch.where(batch["attention_mask"] & counts, batch["reward"], 0))
    return neutral


def begin(objective: Objective, step: TensorDict) -> tuple[TensorDict, dict[str, Counts]]:
    """Prepare a whole optimizer step, neutralized, and count what each of its terms divides by."""
    step = objective.prepare(neutralize(step, step["mask"]))
    return step, {term.name: _count(step[term.where]) for term in objective.terms}


def _count(where: TokenBool) -> Counts:
    return Counts(count_true(where).sum(-1), count_true(any_true(where)))


def evaluate(
    objective: Objective, part: TensorDict, counts: Mapping[str, Counts]
) -> tuple[Scalar, dict[str, Weighted]]:
    """The loss of `part`, any set of whole units of an optimizer step, and its metrics.

    `part` holds `objective.reads`, and the model's `outputs` and `watches`. The loss of a step is the sum of the losses
    of its parts. Each term's own value is among the metrics as ``loss/<term>``.
    """
    neutral = {where: neutralize(part, part[where]) for where in {term.where for term in objective.terms}}
    losses = [t.weight * t.reduce(t.loss(neutral[t.where]), part[t.where], counts[t.name]) for t in objective.terms]
    metrics = dict(objective.metrics(neutralize(part.detach(), part["mask"])))
    for term, loss in zip(objective.terms, losses, strict=True):
        # A loss is divided already: its parts just add up, and the shares of a step's parts add up to 1.
        share = count_true(any_true(part[term.where])).to(loss.dtype) / counts[term.name].rows.clamp(min=1)
        metrics[f"loss/{term.name}"] = Weighted(loss.detach(), share)
    return torch.stack(losses).sum(0), metrics


def merge(*metrics: Mapping[str, Weighted]) -> dict[str, Weighted]:
    """Metrics of several parts as one: totals and weights add up.

    >>> merge({"kl": Weighted(1.0, 2.0)}, {"kl": Weighted(3.0, 2.0)})
    {'kl': Weighted(total=4.0, weight=4.0)}
    """
    names = dict.fromkeys(name for part in metrics for name in part)
    found = {name: [part[name] for part in metrics if name in part] for name in names}
    return {name: Weighted(sum(w.total for w in ws), sum(w.weight for w in ws)) for name, ws in found.items()}


def roles(algorithm: Algorithm, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that `algorithm` needs, those that only score included; `fields` is the schema."""
    objectives = (*algorithm.before, *algorithm.objectives)
    read = (*algorithm.reads, *(name for objective in objectives for name in objective.reads))
    scored = (fields[name].source[0] for name in read if fields[name].source)
    return tuple(dict.fromkeys([*(o.role for o in objectives), *scored]))
