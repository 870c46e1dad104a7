"""The building blocks of an algorithm, and the four functions that run one.

An `Algorithm` is a named tuple of functions of a batch. A training step calls four functions, in this order:

    select_rows(algorithm, batch)                 the rows to keep; the loop samples replacements for the others
    compute_advantages(algorithm, state, batch)   reward shaping, corrections, estimator: a `Transform` of the batch
    prepare_step(objective, step)                 `prepare` on a whole optimizer step, then the counts to divide by
    compute_loss(objective, part, counts)         the loss of any part of that step, for example a micro-batch

The first three compute statistics over the whole batch or step. `compute_loss` only divides by the counts that it is
given. The losses of the parts therefore add up to the loss of the step, and their gradients to its gradient, for any
split into micro-batches and ranks.

Everything here is a NamedTuple of module-level and `Bound` functions: it can be printed, pickled, hashed and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from purerl.algos.parts.episodes import (
    count_rows,
    join_episodes,
    rows_in_part,
    rows_of_episodes,
    split_episodes,
    tokens_of_episodes,
    write_episode_tokens,
)
from purerl.algos.parts.zeros import zero_outside
from purerl.algos.weighted import Largest, Weighted, merge
from purerl.batch import require_tensors, with_fields
from purerl.kernels.masks import count_true
from purerl.types import RowBool, Scalar, TensorDict, TokenBool, TokenFloat

__all__ = [
    "Algorithm",
    "Bound",
    "Counts",
    "Largest",
    "Objective",
    "State",
    "Term",
    "Transform",
    "Weighted",
    "bind",
    "chain",
    "compute_advantages",
    "compute_loss",
    "describe",
    "fingerprint",
    "identity",
    "keep_all",
    "merge",
    "no_metrics",
    "of_fields",
    "outputs_of",
    "prepare_step",
    "read_field",
    "reads_of",
    "roles",
    "select_rows",
    "stages_of",
    "stateless",
    "unchanged",
    "write_field",
]

State = Any
"""The state of a transform: tensors, numbers, and tuples of them."""


# --- functions as data -------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """A function with keyword arguments, compared by value; `functools.partial` is compared by identity."""

    function: Callable
    keywords: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.keywords))


def bind(function: Callable, /, **keywords: Any) -> Bound:
    """Return `function` with the keyword arguments `keywords`.

    >>> bind(torch.clamp, min=0.0) == bind(torch.clamp, min=0.0)
    True
    """
    return Bound(function, tuple(sorted(keywords.items())))


def of_fields(function: Callable, /, *fields: str, **keywords: Any) -> Bound:
    """Turn a function of tensors into one of a batch: batch -> function(*(batch[f] for f in fields), **keywords)."""
    return bind(_call_on_fields, function=bind(function, **keywords), fields=fields)


def _call_on_fields(batch: TensorDict, *, function: Callable, fields: tuple[str, ...]) -> Any:
    return function(*(batch[field] for field in fields))


def read_field(field: str) -> Bound:
    """Return the function batch -> batch[field]."""
    return of_fields(_field_value, field)


def _field_value(value: torch.Tensor) -> torch.Tensor:
    return value


def write_field(field: str, function: Callable[[TensorDict], torch.Tensor]) -> Bound:
    """Return the function that sets `field` of a batch to `function(batch)`."""
    return bind(_write_field, field=field, function=function)


def _write_field(batch: TensorDict, *, field: str, function: Callable) -> TensorDict:
    return with_fields(batch, **{field: function(batch)})


def describe(value: Any) -> str:
    """Return a string for `value` that is the same in every process: functions by name, tuples item by item.

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
    """Return a hash of `value` that is the same in every process."""
    return hashlib.sha256(describe(value).encode()).hexdigest()


# --- the parts of an algorithm -----------------------------------------------------------------------------------


class Transform(NamedTuple):
    """A pure function of the whole batch, with state: apply(state, batch) -> (state, batch)."""

    init: Callable[[], State]
    apply: Callable[[State, TensorDict], tuple[State, TensorDict]]


class _Counts(NamedTuple):
    tokens: Scalar
    rows: Scalar
    row_tokens: torch.Tensor | tuple[()]


class Counts(_Counts):
    """The number of tokens that a term covers in a whole optimizer step, and of rows with at least one of them.

    If the step has `episode`, `rows` is the number of episodes. A reduction gets the number of tokens of each row's
    episode as `row_tokens`, [rows]. It is () if every row is an episode: `torch.func.vmap` cannot map over None.

    >>> counts = Counts(torch.tensor([12, 6]), torch.tensor([3, 3]))
    >>> torch.func.vmap(lambda loss, counts: loss.sum() / counts.tokens)(torch.ones(2, 3, 4), counts)
    tensor([1., 2.])
    """

    __slots__ = ()

    def __new__(cls, tokens: torch.Tensor, rows: torch.Tensor, row_tokens: Any = None) -> Counts:
        return super().__new__(cls, tokens, rows, () if row_tokens is None else row_tokens)


class Term(NamedTuple):
    """One term of a loss: weight * reduce(scales * loss(batch), batch[where], counts).

    `loss` returns [rows, time]. A loss of whole rows writes its value to each token of the row, and needs a `reduce`
    that takes the mean over these tokens. `where` names the bool field with the tokens that the term covers. `scales`
    names fields [rows] whose product multiplies the loss: coefficients that are a state, and weights of rows.
    `follows_policy`: the modifier `reduction` changes it like the term ``policy``, of whose loss it is a part.
    """

    name: str
    loss: Callable[[TensorDict], TokenFloat]
    reduce: Callable[[TokenFloat, TokenBool, Counts], Scalar]
    where: str = "mask"
    weight: float = 1.0
    scales: tuple[str, ...] = ()
    follows_policy: bool = False


def unchanged(batch: TensorDict) -> TensorDict:
    """Return the batch."""
    return batch


def no_metrics(batch: TensorDict) -> dict[str, Weighted]:
    """Return no metrics."""
    return {}


class Objective(NamedTuple):
    """The loss that the model with the given `role` minimizes in one optimizer step.

    reads            fields that the functions read, besides those of `STRUCTURE`
    outputs          outputs of the forward pass, with gradient
    metric_outputs   outputs of the forward pass, without gradient, which only the metrics read
    prepare          batch -> batch, on the whole optimizer step, before any forward pass
    metrics          batch -> {name: Weighted}, without gradient
    unit             "row", or "group" if a loss couples the rows of a group: a micro-batch must not split a unit
    """

    role: str
    reads: tuple[str, ...]
    outputs: tuple[str, ...]
    terms: tuple[Term, ...]
    metric_outputs: tuple[str, ...] = ()
    prepare: Callable[[TensorDict], TensorDict] = unchanged
    metrics: Callable[[TensorDict], Mapping[str, Weighted]] = no_metrics
    unit: str = "row"


def keep_all(batch: TensorDict) -> RowBool:
    """Select every row."""
    return torch.ones_like(batch["row"], dtype=torch.bool)


class Algorithm(NamedTuple):
    """A reinforcement-learning, preference or imitation algorithm.

    reads            fields that `select` and `advantage` read, besides those of `STRUCTURE`
    advantage        a `Transform` of the whole batch
    objectives       the objective of each model, in the order in which the models are updated
    select           batch -> bool [rows], the rows to keep
    before           objectives of models that are updated before `advantage` runs
    min_group_size   the number of rows per prompt below which every advantage is 0
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
    """Return a transform without state."""
    return Transform(_no_state, bind(_stateless, function=function))


def chain(*transforms: Transform) -> Transform:
    """Apply `transforms` in the given order. The state is the tuple of their states."""
    return Transform(
        bind(_chain_init, inits=tuple(t.init for t in transforms)),
        bind(_chain_apply, applies=tuple(t.apply for t in transforms)),
    )


def _chain_init(*, inits: tuple[Callable, ...]) -> State:
    return tuple(init() for init in inits)


def _chain_apply(state: State, batch: TensorDict, *, applies: tuple[Callable, ...]) -> tuple[State, TensorDict]:
    states = []
    for apply, substate in zip(applies, state, strict=True):
        substate, batch = apply(substate, batch)
        states.append(substate)
    return tuple(states), batch


def stages_of(transform: Transform) -> tuple[Transform, ...]:
    """The transforms that `transform` chains, in their order; a transform that is no chain is its only stage.

    >>> stages_of(chain(chain(), chain())), stages_of(one := stateless(unchanged)) == (one,)
    ((), True)
    """
    if not isinstance(transform.apply, Bound) or transform.apply.function is not _chain_apply:
        return (transform,)
    inits, applies = dict(transform.init.keywords)["inits"], dict(transform.apply.keywords)["applies"]
    return tuple(stage for parts in zip(inits, applies, strict=True) for stage in stages_of(Transform(*parts)))


identity = chain()
"""The transform that returns the batch unchanged, for algorithms without an advantage."""


# --- running an algorithm ----------------------------------------------------------------------------------------


def select_rows(algorithm: Algorithm, batch: TensorDict, *, episodes: tuple[int, int] | None = None) -> RowBool:
    """Return the rows that `algorithm.select` keeps, bool [rows].

    It gets the same batch as `algorithm.advantage`, but without fields that models have not computed yet.
    """
    require_tensors(batch, algorithm.reads)
    joined, index = join_episodes(batch, [name for name in algorithm.reads if name in batch.keys()], episodes)
    return rows_of_episodes(algorithm.select(joined), index)


def compute_advantages(
    algorithm: Algorithm, state: State, batch: TensorDict, *, episodes: tuple[int, int] | None = None
) -> tuple[State, TensorDict]:
    """Apply `algorithm.advantage` to the whole batch.

    Before that, floats are set to 0 outside of action tokens, and in rows without a counted token. Recurrences follow
    action tokens, so these keep their values even if `mask` does not count them. `reward` keeps its values at every
    token of those rows, because an environment may put a reward on a token that is not an action.

    If the batch has `episode`, the transform gets the batch of its episodes (`purerl.algos.parts.episodes`), and all
    rows of an episode get what it writes. The shape of this batch is read from the values. Under `torch.func.vmap` and
    `torch.compile`, give it as `episodes`: the number of episodes, and of action tokens of the longest, or more.
    """
    require_tensors(batch, algorithm.reads)
    joined, index = join_episodes(batch, algorithm.reads, episodes)
    state, after = algorithm.advantage.apply(state, joined)
    return state, split_episodes(batch, joined, after, index)


def prepare_step(objective: Objective, step: TensorDict) -> tuple[TensorDict, dict[str, Counts]]:
    """Apply `objective.prepare` to a whole optimizer step, and count the tokens and rows that each term covers.

    Before that, floats outside `mask` are set to 0. If the step has `episode`, the rows of an episode count as one, and
    `episode_tokens` is written.
    """
    require_tensors(step, objective.reads)
    step = objective.prepare(zero_outside(step, step["mask"]))
    step = write_episode_tokens(step, [term.where for term in objective.terms])
    return step, {t.name: Counts(count_true(step[t.where]).sum(-1), count_rows(step, t.where)) for t in objective.terms}


def compute_loss(
    objective: Objective, part: TensorDict, counts: Mapping[str, Counts]
) -> tuple[Scalar, dict[str, Weighted]]:
    """Return the loss and the metrics of `part`: any set of whole units (rows or groups) of an optimizer step.

    `part` holds `objective.reads`, the model's `outputs` and `metric_outputs`, and `episode_tokens` if `prepare_step`
    has written it. The loss of a step is the sum of those of its parts. The metric ``loss/<term>`` is that of a term.
    """
    require_tensors(part, (*objective.reads, *objective.outputs))
    zeroed = {where: zero_outside(part, part[where]) for where in {term.where for term in objective.terms}}
    metrics, losses = dict(objective.metrics(zero_outside(part.detach(), part["mask"]))), []
    for index, term in enumerate(objective.terms):
        mask, count = part[term.where], counts[term.name]._replace(row_tokens=tokens_of_episodes(part, index))
        loss = term.weight * term.reduce(_loss(term, zeroed[term.where]), mask, count)
        # The losses of the parts add up to that of the step. Their weights, fractions of its rows, add up to 1.
        fraction = rows_in_part(mask, count.row_tokens).to(loss.dtype) / count.rows.clamp(min=1)
        metrics[f"loss/{term.name}"] = Weighted(loss.detach(), fraction)
        losses.append(loss)
    return torch.stack(losses).sum(0), metrics


def _loss(term: Term, batch: TensorDict) -> TokenFloat:
    loss = term.loss(batch)
    for name in term.scales:
        loss = loss * batch[name].unsqueeze(-1)
    return loss


def roles(algorithm: Algorithm, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles of all models that `algorithm` needs: those that are trained, then those that only score rows.

    `fields` maps the name of each field of the batch to its entry in the schema.
    """
    trained = (objective.role for objective in (*algorithm.before, *algorithm.objectives))
    scored = (fields[name].source[0] for name in reads_of(algorithm) if fields[name].source)
    return tuple(dict.fromkeys([*trained, *scored]))


def outputs_of(algorithm: Algorithm, role: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the outputs that `algorithm` needs from the model in `role`. `fields` is as in `roles`."""
    sources = (fields[name].source for name in sorted(reads_of(algorithm)))
    scored = [source[1] for source in sources if source[:1] == (role,)]
    trained = [objective for objective in (*algorithm.before, *algorithm.objectives) if objective.role == role]
    return tuple(dict.fromkeys([*scored, *(name for o in trained for name in (*o.outputs, *o.metric_outputs))]))


def reads_of(algorithm: Algorithm) -> tuple[str, ...]:
    """Return all fields that `algorithm` and its objectives read, beside those of every batch."""
    learned = (name for objective in (*algorithm.before, *algorithm.objectives) for name in objective.reads)
    return tuple(dict.fromkeys([*algorithm.reads, *learned]))
