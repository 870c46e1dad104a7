"""A check of the size of an update: is the gradient divided by the counts, and only once?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from purerl.algos.algebra import Counts
from purerl.testing.trainer.reference import (
    OBJECTIVES,
    Case,
    Step,
    assert_finite,
    first_steps,
    is_close,
    reference_training,
    value_of,
    weights_of,
)
from purerl.testing.trainer.resources import builds, take_steps

__all__ = ["gradients_are_divided_by_the_counts"]

_LARGEST_FACTOR = 1e4
_SAME_DIRECTION = 1e-3
"""Two updates are the same if their distance is at most this share of their norm."""


def gradients_are_divided_by_the_counts(case: Case) -> None:
    """The first update has the size of a gradient that is divided by the counts of the whole step, and only once.

    An update in another direction is an error of `steps_equal_the_reference`.
    """
    for build in builds(case):
        trainer, (step,) = build(), first_steps(case, OBJECTIVES[0], 1)
        before = weights_of(trainer)
        after, (report,) = take_steps(trainer, [step])
        assert_finite("weights after a step", after)
        expected = _after_step(case, before, step)
        if is_close(after, expected, case.tolerance):
            continue
        ratio = _distance(after, before) / _distance(expected, before)
        is_skipped = "; the step is reported as skipped, as one whose gradient is NaN, infinite or 0"
        reason = is_skipped if value_of(report["skipped"]) else ""
        assert ratio, f"the update is 0 times the expected one: no weight has changed{reason}"
        factor = _factor(case, before, after, step)
        explained = _after_step(case, before, step, factor)
        assert _distance(after, explained) > _SAME_DIRECTION * _distance(after, before), (
            f"the update is {ratio:.4g} times the expected one, as with a gradient that is {factor:.4g} times as "
            f"large: the sum over the tokens has to be divided by the counts that `step` gets, {_counts(step)}, and by "
            f"nothing else"
        )


def _counts(step: Step) -> str:
    return ", ".join(f"{name}: {float(count.tokens):g} tokens" for name, count in step[2].items())


def _after_step(case: Case, weights: Mapping[str, Tensor], step: Step, factor: float = 1.0) -> dict[str, Tensor]:
    """The weights after `step` of the reference, with a gradient `factor` times as large."""
    batch, objective, counts = step
    scaled = {name: Counts(count.tokens / factor, count.rows / factor) for name, count in counts.items()}
    return reference_training(case, weights, [(batch, objective, scaled)])[0]


def _factor(case: Case, before: Mapping[str, Tensor], after: Mapping[str, Tensor], step: Step) -> float:
    """The factor of the gradient with which the reference's update has the norm of the trainer's, by bisection."""
    norm, low, high = _distance(after, before), 1 / _LARGEST_FACTOR, _LARGEST_FACTOR
    for _ in range(40):
        middle = math.sqrt(low * high)
        is_larger = _distance(_after_step(case, before, step, middle), before) > norm
        low, high = (low, middle) if is_larger else (middle, high)
    return math.sqrt(low * high)


def _distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return float(torch.stack([(first[name] - second[name]).double().square().sum() for name in first]).sum().sqrt())
