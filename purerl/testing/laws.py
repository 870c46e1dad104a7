"""The laws: what an algorithm has to satisfy, whatever it computes.

A law is a function of an algorithm and a batch. It raises AssertionError, and says what differs, where, and by how
much. `LAWS` holds all of them. To add one, write the function here, and an algorithm that it must catch in
`property_tests/mutants.py`.

Most of them compare the `Outcome` of a batch with that of a changed one. Numbers have to agree to 1e-9: give batches of
float64.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm, Objective, describe, fingerprint, keep_all
from purerl.batch import STRUCTURE, put
from purerl.testing.changes import cast, compact, drive_apart, pad, poison, rename, take, uncount
from purerl.testing.elsewhere import fingerprint_elsewhere
from purerl.testing.outcome import Outcome, difference, learn, run, steps, tensors, units

__all__ = ["LAWS", "Law"]

Law = Callable[[Algorithm, TensorDict], None]


def _law(function: Law) -> Law:
    """Name the law in whatever it raises: a crash breaks it no less than a difference."""

    @functools.wraps(function)
    def law(algorithm: Algorithm, batch: TensorDict) -> None:
        try:
            function(algorithm, batch)
        except AssertionError as error:
            raise AssertionError(f"{function.__name__}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{function.__name__}: {type(error).__name__}: {error}") from error

    return law


def _same(expected: Outcome, found: Outcome, *, tolerance: float = 1e-9) -> None:
    gap = difference(expected, found, tolerance=tolerance)
    assert gap is None, gap


def _map(outcome: Outcome, function: Callable[[Tensor], Tensor]) -> Outcome:
    return outcome._replace(rows={name: function(value) for name, value in outcome.rows.items()})


# --- what it touches ---------------------------------------------------------------------------------------------


@_law
def what_is_declared_is_read(algorithm: Algorithm, batch: TensorDict) -> None:
    """It runs on what it declares, and on nothing less: a field that nothing reads is computed for nothing."""
    run(algorithm, batch)
    for name, fewer in _one_fewer(algorithm):
        try:
            run(fewer, batch)
        except KeyError:
            continue
        raise AssertionError(f"{name!r} is declared, but nothing reads it")


def _one_fewer(algorithm: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    yield from _leave_one_out(algorithm, "reads")
    for place in ("before", "objectives"):
        objectives = getattr(algorithm, place)
        for index, objective in enumerate(objectives):
            for name, fewer in _leave_one_out(objective, "reads", "outputs", "watches"):
                yield name, algorithm._replace(**{place: (*objectives[:index], fewer, *objectives[index + 1 :])})


def _leave_one_out(value: Any, *lists: str) -> Iterator[tuple[str, Any]]:
    for kind in lists:
        names = getattr(value, kind)
        for left_out in set(names) - set(STRUCTURE):
            yield left_out, value._replace(**{kind: tuple(name for name in names if name != left_out)})


@_law
def inputs_are_unchanged(algorithm: Algorithm, batch: TensorDict) -> None:
    """No function changes what it is given, not by a bit and not by a field."""
    guarded = algorithm._replace(
        select=_guard(algorithm.select),
        advantage=algorithm.advantage._replace(apply=_guard(algorithm.advantage.apply)),
        before=tuple(map(_guard_objective, algorithm.before)),
        objectives=tuple(map(_guard_objective, algorithm.objectives)),
    )
    run(guarded, batch)


def _guard_objective(objective: Objective) -> Objective:
    terms = tuple(t._replace(loss=_guard(t.loss), reduce=_guard(t.reduce)) for t in objective.terms)
    return objective._replace(prepare=_guard(objective.prepare), metrics=_guard(objective.metrics), terms=terms)


def _guard(function: Callable) -> Callable:
    def guarded(*args: Any) -> Any:
        before = _bits(args)
        result = function(*args)
        assert _bits(args) == before, f"an argument of {describe(function)} is not what it was before the call"
        return result

    return guarded


def _bits(args: tuple) -> list:
    fields = [list(arg.keys()) for arg in args if isinstance(arg, TensorDict)]
    return [*fields, *(tensor.detach().numpy().tobytes() for tensor in tensors(args))]


@_law
def nothing_is_hidden(algorithm: Algorithm, batch: TensorDict) -> None:
    """The same batch gives the same, to the bit: chance and memory come in as fields and as state."""
    _same(run(algorithm, batch), run(algorithm, batch), tolerance=0.0)


@_law
def dtype_is_kept(algorithm: Algorithm, batch: TensorDict) -> None:
    """Every float that comes out has the dtype of those that went in."""
    for dtype in (torch.float32, torch.float64):
        rows, totals, metrics = run(algorithm, cast(batch, dtype))
        for name, value in {**rows, **totals, **metrics}.items():
            kept = value.dtype == dtype or not value.is_floating_point() or name.startswith("state")
            assert kept, f"{name} is {value.dtype} in a batch of {dtype}"


@_law
def it_travels(algorithm: Algorithm, batch: TensorDict) -> None:
    """What its pickle holds is equal to it, and another process describes it in the same words."""
    packed = pickle.dumps(algorithm)
    assert pickle.loads(packed) == algorithm, "it is not equal to what its pickle holds"  # noqa: S301
    here, there = fingerprint(algorithm), fingerprint_elsewhere(packed)
    assert here == there, f"another process gives it another fingerprint, {there}, than {here} of {describe(algorithm)}"


# --- what it does not notice -------------------------------------------------------------------------------------


@_law
def padding_is_invisible(algorithm: Algorithm, batch: TensorDict) -> None:
    """More columns, and a row without a token, change nothing, whatever they hold."""
    rows, time = batch["mask"].shape
    found = run(algorithm, pad(batch))
    _same(run(algorithm, batch), _map(found, lambda value: value[:rows] if value.ndim == 1 else value[:rows, :time]))


@_law
def compaction_is_invisible(algorithm: Algorithm, batch: TensorDict) -> None:
    """Without the tokens between action tokens, their rewards folded back, action tokens get the same."""
    compacted, origin = compact(batch)
    action = compacted["action"]

    def acting(value: Tensor) -> Tensor:
        return value * action.reshape(action.shape + (1,) * (value.ndim - 2))

    expected = _map(run(algorithm, batch), lambda value: value if value.ndim == 1 else acting(take(value, origin)))
    _same(expected, _map(run(algorithm, compacted), lambda value: value if value.ndim == 1 else acting(value)))


@_law
def permuting_rows_permutes(algorithm: Algorithm, batch: TensorDict) -> None:
    """Rows in another order get the same in that order."""
    order = torch.randperm(len(batch["row"]), generator=torch.Generator().manual_seed(0))
    _same(_map(run(algorithm, batch), lambda value: value[order]), run(algorithm, batch[order]))


@_law
def uncounted_rows_are_absent(algorithm: Algorithm, batch: TensorDict) -> None:
    """Rows in which nothing counts can as well be left out, of their groups too."""
    counts = batch["mask"].any(-1)
    if counts.any():
        _same(_map(run(algorithm, batch), lambda value: value[counts]), run(algorithm, batch[counts]))


@_law
def labels_are_names(algorithm: Algorithm, batch: TensorDict) -> None:
    """Other labels, of any sign and size and in any order, give the same."""
    _same(run(algorithm, batch), run(algorithm, rename(batch)))


@_law
def masked_out_is_inert(algorithm: Algorithm, batch: TensorDict) -> None:
    """NaN where nothing may be read changes neither a value nor a gradient.

    Up to the advantage that is outside action tokens, and in rows where nothing counts; only a reward may lie on any
    token of the other rows. For an objective it is wherever nothing counts.
    """
    counts = batch["mask"].any(-1, keepdim=True)
    poisoned = poison(batch, batch["action"] & counts)
    if "reward" in batch.keys():
        poisoned = put(poisoned, reward=batch["reward"].where(batch["attention_mask"] & counts, torch.nan))
    _same(run(algorithm, batch), run(algorithm, poisoned))
    for objective, step in steps(algorithm, batch):
        _same(learn(objective, step), learn(objective, poison(step, step["mask"])))


# --- how a step is cut -------------------------------------------------------------------------------------------


@_law
def splitting_is_invisible(algorithm: Algorithm, batch: TensorDict) -> None:
    """The units of a step one by one, trimmed to their own width, add up to the step in value and gradient."""
    for objective, step in steps(algorithm, batch):
        _same(learn(objective, step)._replace(metrics={}), learn(objective, step, units)._replace(metrics={}))


@_law
def dealing_is_invisible(algorithm: Algorithm, batch: TensorDict) -> None:
    """Units dealt to ranks in any order, one of which gets none, add up to the step: groups may straddle ranks."""
    for objective, step in steps(algorithm, batch):
        _same(learn(objective, step)._replace(metrics={}), learn(objective, step, _dealt)._replace(metrics={}))


def _dealt(objective: Objective, step: TensorDict) -> list[TensorDict]:
    label = step[objective.unit]
    known = label.unique()
    ticket = torch.randperm(len(known), generator=torch.Generator().manual_seed(0)) % 2
    return [step[torch.isin(label, known[ticket == rank])] for rank in range(3)]


@_law
def metrics_merge(algorithm: Algorithm, batch: TensorDict) -> None:
    """The merged metrics of the parts of a step are the metrics of the step."""
    for objective, step in steps(algorithm, batch):
        expected = Outcome({}, {}, learn(objective, step).metrics)
        for cut in (units, _dealt):
            _same(expected, Outcome({}, {}, learn(objective, step, cut).metrics))


# --- what comes out ----------------------------------------------------------------------------------------------


@_law
def nothing_counted_is_zero(algorithm: Algorithm, batch: TensorDict) -> None:
    """Where nothing counts, or there is no row, losses and gradients are 0, and everything else is finite."""
    empty = uncount(batch)
    _finite(run(algorithm, empty))
    for objective, step in steps(algorithm, empty):
        for rows, totals, metrics in (learn(objective, step), learn(objective, step[:0])):
            _finite(Outcome(rows, totals, metrics))
            for name, value in {**rows, **totals}.items():
                assert not value.any(), f"{name} is {float(value.abs().max()):.3g}, and nothing counts"


@_law
def extreme_ratios_are_finite(algorithm: Algorithm, batch: TensorDict) -> None:
    """Policies that are 1e3 nats apart on a token give finite values and gradients, in float32."""
    _finite(run(algorithm, cast(drive_apart(batch), torch.float32)))


def _finite(outcome: Outcome) -> None:
    for name, value in {**outcome.rows, **outcome.totals, **outcome.metrics}.items():
        assert value.isfinite().all(), f"{name} is not finite"


@_law
def no_reward_is_lost(algorithm: Algorithm, batch: TensorDict) -> None:
    """A reward on the last token of one of two equal rows, masked out or a tool's as it may be, tells them apart."""
    counted = batch["mask"].any(-1).nonzero()[:, 0].tolist() if "reward" in algorithm.reads else []
    for row in counted[:1]:
        twins = put(batch[[row, row]], row=torch.arange(2))
        none = torch.zeros_like(twins["reward"])
        one = none.clone()
        one[0, int(twins["attention_mask"][0].sum()) - 1] = 1
        # Selection would show it too, but only that rows differ: it does not say which of them is better.
        results = [run(algorithm._replace(select=keep_all), put(twins, reward=reward)) for reward in (none, one)]
        assert difference(*results), "a reward on the last token has no effect"


@_law
def gradients_flow_through_outputs_only(algorithm: Algorithm, batch: TensorDict) -> None:
    """Each output gets a gradient, even where nothing counts, and what is only watched gets none."""
    for objective, step in [*steps(algorithm, batch), *steps(algorithm, uncount(batch))]:
        every = objective._replace(outputs=(*objective.outputs, *objective.watches), watches=())
        reached = {name.split()[-1] for name in learn(every, step).rows}
        wrong = reached.symmetric_difference(objective.outputs)
        assert not wrong, (
            f"objective {objective.role!r} declares {objective.outputs}, gradients reach {sorted(reached)}"
        )


@_law
def gradient_is_the_derivative(algorithm: Algorithm, batch: TensorDict) -> None:
    """Gradients are the quotients of differences, in float64, at a few tokens that are not at a kink."""
    draw = torch.Generator().manual_seed(0)
    for objective, step in steps(algorithm, batch):
        places = step["mask"].nonzero()
        places = places[torch.randperm(len(places), generator=draw)[:6]]
        for name, gradient in learn(objective, step).rows.items():
            for row, time in places.tolist():
                place = (row, time, *(0,) * (gradient.ndim - 2))
                found = float(gradient[place])
                quotient = functools.partial(_quotient, objective, step, name.split()[-1], place)
                expected = quotient(1e-6)
                # Where the quotient depends on the width there is a kink, and nothing to compare with.
                assert _near(expected, found) or not _near(expected, quotient(1e-5)), (
                    f"{name}[{row}, {time}] is {found:.6g}, the quotient of differences {expected:.6g}"
                )


def _quotient(objective: Objective, step: TensorDict, name: str, place: tuple[int, ...], width: float) -> float:
    """The difference of the loss when one number is moved by `width` both ways, divided by twice the width."""
    losses = []
    for offset in (-width, width):
        moved = step[name].clone()
        moved[place] += offset
        losses += learn(objective, put(step, **{name: moved})).totals.values()
    return float(losses[1] - losses[0]) / (2 * width)


def _near(expected: float, found: float) -> bool:
    return abs(expected - found) < 1e-7 * max(1.0, abs(expected))


LAWS: tuple[Law, ...] = (
    what_is_declared_is_read,
    inputs_are_unchanged,
    nothing_is_hidden,
    dtype_is_kept,
    it_travels,
    padding_is_invisible,
    compaction_is_invisible,
    permuting_rows_permutes,
    uncounted_rows_are_absent,
    labels_are_names,
    masked_out_is_inert,
    splitting_is_invisible,
    dealing_is_invisible,
    metrics_merge,
    nothing_counted_is_zero,
    extreme_ratios_are_finite,
    no_reward_is_lost,
    gradients_flow_through_outputs_only,
    gradient_is_the_derivative,
)
