"""Losses and gradients: what they are where nothing counts, at extremes, and where no policy has moved."""

from __future__ import annotations

import functools

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, of_fields
from purerl.algos.parts.surrogates import policy_gradient
from purerl.batch import with_fields
from purerl.testing.laws.law import law, same
from purerl.testing.outcome import Outcome, learn, run, steps
from purerl.testing.perturbations import cast, drive_apart, on_policy, uncount

__all__ = [
    "finite_at_extreme_ratios",
    "gradient_matches_finite_differences",
    "gradients_only_through_outputs",
    "reinforce_gradient_on_policy",
    "zero_loss_without_counted_tokens",
]

_WIDTH = 1e-6
"""By how much a number is moved to see what becomes of the loss."""


@law
def zero_loss_without_counted_tokens(algorithm: Algorithm, batch: TensorDict) -> None:
    """Where nothing counts, or there is no row, losses and gradients are 0, and everything else is finite."""
    empty = uncount(batch)
    _finite(run(algorithm, empty))
    for objective, step in steps(algorithm, empty):
        for rows, totals, metrics in (learn(objective, step), learn(objective, step[:0])):
            _finite(Outcome(rows, totals, metrics))
            for name, value in {**rows, **totals}.items():
                assert not value.any(), f"{name} is {float(value.abs().max()):.3g}, and nothing counts"


@law
def finite_at_extreme_ratios(algorithm: Algorithm, batch: TensorDict) -> None:
    """Policies that are 1e3 nats apart on a token give finite values and gradients, in float32."""
    _finite(run(algorithm, cast(drive_apart(batch), torch.float32)))


def _finite(outcome: Outcome) -> None:
    for name, value in {**outcome.rows, **outcome.totals, **outcome.metrics}.items():
        assert value.isfinite().all(), f"{name} is not finite"


@law
def gradients_only_through_outputs(algorithm: Algorithm, batch: TensorDict) -> None:
    """Each output gets a gradient, even where nothing counts, and what is only watched gets none."""
    for objective, step in [*steps(algorithm, batch), *steps(algorithm, uncount(batch))]:
        every = objective._replace(outputs=(*objective.outputs, *objective.metric_outputs), metric_outputs=())
        reached = {name.split()[-1] for name in learn(every, step).rows}
        wrong = reached.symmetric_difference(objective.outputs)
        assert not wrong, (
            f"objective {objective.role!r} declares {objective.outputs}, gradients reach {sorted(reached)}"
        )


@law
def gradient_matches_finite_differences(algorithm: Algorithm, batch: TensorDict) -> None:
    """Gradients are the quotients of differences, in float64, at a few tokens that are not at a kink."""
    draw = torch.Generator().manual_seed(0)
    for objective, step in steps(algorithm, batch):
        places = step["mask"].nonzero()
        places = places[torch.randperm(len(places), generator=draw)[:6]]
        gradients, totals, _ = learn(objective, step)
        near = functools.partial(_near, loss=sum(abs(float(total)) for total in totals.values()))
        for name, gradient in gradients.items():
            for row, time in places.tolist():
                place = (row, time, *(0,) * (gradient.ndim - 2))
                found = float(gradient[place])
                quotient = functools.partial(_quotient, objective, step, name.split()[-1], place)
                expected = quotient(_WIDTH)
                # Where the quotient depends on the width there is a kink, and nothing to compare with.
                assert near(expected, found) or not near(expected, quotient(10 * _WIDTH)), (
                    f"{name}[{row}, {time}] is {found:.6g}, the quotient of differences {expected:.6g}"
                )


def _quotient(objective: Objective, step: TensorDict, name: str, place: tuple[int, ...], width: float) -> float:
    """The difference of the loss when one number is moved by `width` both ways, divided by twice the width."""
    losses = []
    for offset in (-width, width):
        moved = step[name].clone()
        moved[place] += offset
        losses += learn(objective, with_fields(step, **{name: moved})).totals.values()
    return float(losses[1] - losses[0]) / (2 * width)


def _near(expected: float, found: float, *, loss: float) -> bool:
    """Up to 1e-7, and what rounding a loss of this size makes of a quotient."""
    rounding = 2 * torch.finfo(torch.float64).eps * loss / _WIDTH
    return abs(expected - found) < 1e-7 * max(1.0, abs(expected)) + rounding


@law
def reinforce_gradient_on_policy(algorithm: Algorithm, batch: TensorDict) -> None:
    """Where all policies agree, the policy's gradient is that of -A logp, reduced as its first term is."""
    for objective, step in steps(algorithm, on_policy(batch)):
        if objective.role == "policy":
            reinforce = objective.terms[0]._replace(loss=of_fields(policy_gradient, "logp", "advantage"))
            one, other = (learn(o, step).rows for o in (objective._replace(terms=(reinforce,)), objective))
            same(*(Outcome({n: rows[n] for n in rows if n.endswith("logp")}, {}, {}) for rows in (one, other)))
