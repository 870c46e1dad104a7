"""The metrics of an algorithm."""

from __future__ import annotations

from purerl.algos.algebra import Algorithm, compute_loss, prepare_step
from purerl.testing import example_batch, fields_of, random_layout
from purerl.testing.outcome import steps

__all__ = ["metrics"]


def metrics(algorithm: Algorithm) -> list[str]:
    """The names of all metrics of the objectives of `algorithm`, as ROLE/NAME."""
    fields = fields_of(algorithm)
    batch = example_batch(fields, random_layout(1, pairs="chosen" in fields))
    results = [
        (objective.role, compute_loss(objective, *prepare_step(objective, step))[1])
        for objective, step in steps(algorithm, batch)
    ]
    return [f"{role}/{name}" for role, metrics_of_role in results for name in metrics_of_role]
