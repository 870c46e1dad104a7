"""Laws of losses and gradients: without counted tokens, at extreme values, and on policy."""

from __future__ import annotations

import functools

import torch
from tensordict import TensorDict

from purerl.algos.algebra import Algorithm, Objective, of_fields
from purerl.algos.parts.surrogates import policy_gradient
from purerl.batch import with_fields
from purerl.testing.laws.law import ViolationError, assert_same, law
from purerl.testing.outcome import Outcome, run, run_objective, steps
from purerl.testing.perturbations import (
    add_extreme_log_ratios,
    cast,
    make_on_policy,
    make_tokens_impossible,
    mask_out_all_tokens,
)

__all__ = [
    "finite_at_extreme_ratios",
    "finite_at_impossible_tokens",
    "gradient_matches_finite_differences",
    "gradients_only_through_outputs",
    "reinforce_gradient_on_policy",
    "zero_loss_without_counted_tokens",
]

_STEP_SIZE = 1e-6
"""The step size of the finite differences."""


@law
def zero_loss_without_counted_tokens(algorithm: Algorithm, batch: TensorDict) -> None:
    """In a step without rows or without counted tokens, losses and gradients are 0 and all other results are finite.

    A rank of a data-parallel run may receive such a step. Common violations: a division by a count of 0, a loss that is
    not masked.
    """
    masked = mask_out_all_tokens(batch)
    _assert_finite(run(algorithm, masked))
    for objective, step in steps(algorithm, masked):
        for rows, totals, metrics in (run_objective(objective, step), run_objective(objective, step[:0])):
            _assert_finite(Outcome(rows, totals, metrics))
            for name, value in {**rows, **totals}.items():
                largest = float(value.abs().max()) if value.numel() else 0.0
                assert largest == 0, f"{name}: got {largest:.3g} in a step without counted tokens, expected 0"


@law
def finite_at_extreme_ratios(algorithm: Algorithm, batch: TensorDict) -> None:
    """Values and gradients are finite in float32 if log-probabilities of two policies differ by 1e3 nats.

    One stale token must not make the loss infinite or NaN. Common violations: `exp` of a log-ratio that is not clamped,
    infinity times 0.
    """
    _assert_finite(run(algorithm, cast(add_extreme_log_ratios(batch), torch.float32)))


@law
def finite_at_impossible_tokens(algorithm: Algorithm, batch: TensorDict) -> None:
    """Values and gradients are finite in float32 if log-probabilities are -inf, under one or under all policies.

    A token has this log-probability if its logit is masked or its probability underflows. Every function gets -1000
    nats in its place, a constant without gradient. Common violations: a quotient of probabilities, which is 0 / 0, the
    logarithm of a probability.
    """
    _assert_finite(run(algorithm, cast(make_tokens_impossible(batch), torch.float32)))


def _assert_finite(outcome: Outcome) -> None:
    for name, value in {**outcome.rows, **outcome.totals, **outcome.metrics}.items():
        for index in (~value.isfinite()).nonzero()[:1]:
            found = f"{name}: got {float(value[tuple(index)])}, expected finite values"
            raise ViolationError(found, tuple(index[:2].tolist()) if name in outcome.rows else ())


@law
def gradients_only_through_outputs(algorithm: Algorithm, batch: TensorDict) -> None:
    """Every field in `outputs` receives a gradient, even without counted tokens; no field in `metric_outputs` does.

    All ranks must run the same backward pass, whatever rows they have. Common violations: an unintended `detach`, a
    loss of a field that is declared in `metric_outputs`.
    """
    for objective, step in [*steps(algorithm, batch), *steps(algorithm, mask_out_all_tokens(batch))]:
        all_outputs = objective._replace(outputs=(*objective.outputs, *objective.metric_outputs), metric_outputs=())
        reached = {name.split()[-1] for name in run_objective(all_outputs, step).rows}
        assert reached == set(objective.outputs), (
            f"objective {objective.role!r}: got gradients for {sorted(reached)}, "
            f"expected gradients for its outputs {sorted(objective.outputs)}"
        )


@law
def gradient_matches_finite_differences(algorithm: Algorithm, batch: TensorDict) -> None:
    """The gradient at up to six counted tokens equals the central finite difference of the loss, in float64.

    Tokens at a kink of the loss are skipped. Common violations: a term that is computed under `no_grad`, an unintended
    `detach`. A module that stops a gradient on purpose declares an exemption.
    """
    rng = torch.Generator().manual_seed(0)
    for objective, step in steps(algorithm, batch):
        positions = step["mask"].nonzero()
        positions = positions[torch.randperm(len(positions), generator=rng)[:6]]
        gradients, totals, _ = run_objective(objective, step)
        is_close = functools.partial(_is_close, loss=sum(abs(float(total)) for total in totals.values()))
        for name, gradient in gradients.items():
            for row, time in positions.tolist():
                index = (row, time, *(0,) * (gradient.ndim - 2))
                actual = float(gradient[index])
                finite_difference = functools.partial(_finite_difference, objective, step, name.split()[-1], index)
                expected = finite_difference(_STEP_SIZE)
                # The finite difference depends on the step size at a kink. There is no gradient to compare with there.
                if not is_close(expected, actual) and is_close(expected, finite_difference(10 * _STEP_SIZE)):
                    found = (
                        f"{name} at [{row}, {time}]: got {actual:.6g}, expected the finite difference {expected:.6g}"
                    )
                    raise ViolationError(found, (row, time))


def _finite_difference(
    objective: Objective, step: TensorDict, name: str, index: tuple[int, ...], step_size: float
) -> float:
    """(loss(x + h) - loss(x - h)) / (2 h), where x is the element `index` of the field `name` and h is `step_size`."""
    losses = []
    for offset in (-step_size, step_size):
        value = step[name].clone()
        value[index] += offset
        losses += run_objective(objective, with_fields(step, **{name: value})).totals.values()
    return float(losses[1] - losses[0]) / (2 * step_size)


def _is_close(expected: float, actual: float, *, loss: float) -> bool:
    """abs(expected - actual) < 1e-7 * max(1, abs(expected)) + the rounding error of the finite difference of `loss`."""
    rounding = 2 * torch.finfo(torch.float64).eps * loss / _STEP_SIZE
    return abs(expected - actual) < 1e-7 * max(1.0, abs(expected)) + rounding


@law
def reinforce_gradient_on_policy(algorithm: Algorithm, batch: TensorDict) -> None:
    """On policy, the gradient with respect to `logp` is that of the loss -A logp (REINFORCE).

    The log-probabilities of all policies are equal, except those of a teacher or a reward model. The loss -A logp is
    reduced like the first term of the objective. Common violations: a wrong sign, a wrong factor, a ratio of the wrong
    log-probabilities.
    """
    for objective, step in steps(algorithm, make_on_policy(batch)):
        if objective.role == "policy":
            term = objective.terms[0]._replace(loss=of_fields(policy_gradient, "logp", "advantage"))
            reinforce = objective._replace(terms=(term,))
            assert_same(_logp_gradients(reinforce, step), _logp_gradients(objective, step))


def _logp_gradients(objective: Objective, step: TensorDict) -> Outcome:
    gradients = run_objective(objective, step).rows
    return Outcome({name: value for name, value in gradients.items() if name.endswith("logp")}, {}, {})
