"""The metrics of an algorithm, and their meanings, which are read from docs/metrics.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from purerl.algos.algebra import Algorithm, compute_loss, prepare_step
from purerl.testing import example_batch, fields_of, random_layout
from purerl.testing.outcome import steps

__all__ = ["meaning", "metrics"]


def metrics(algorithm: Algorithm) -> list[str]:
    """The names of all metrics of the objectives of `algorithm`, as ROLE/NAME."""
    fields = fields_of(algorithm)
    batch = example_batch(fields, random_layout(1, pairs="chosen" in fields))
    results = [
        (objective.role, compute_loss(objective, *prepare_step(objective, step))[1])
        for objective, step in steps(algorithm, batch)
    ]
    return [f"{role}/{name}" for role, metrics_of_role in results for name in metrics_of_role]


def meaning(metric: str) -> tuple[str, str]:
    """(unit, meaning) of a metric of one model, from the tables in docs/metrics.md.

    A metric of another model has the meaning of the policy's metric of the same name, unless docs/metrics.md has its
    own row for it. All terms of a loss share one row. Raises: KeyError for a metric that is not in the tables.
    """
    _, _, name = metric.partition("/")
    rows = _rows()
    return rows.get(metric) or rows["policy/loss/<term>" if name.startswith("loss/") else f"policy/{name}"]


@cache
def _rows() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parents[1] / "metrics.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    return {name: (unit, note) for names, unit, note in cells for name in re.findall("`([^`]+)`", names)}
