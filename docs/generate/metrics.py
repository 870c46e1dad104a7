"""Which metrics an algorithm gives, and what docs/metrics.md says of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from purerl.algos.algebra import Algorithm, compute_loss, prepare_step
from purerl.testing import example_batch, fields_of, random_layout
from purerl.testing.outcome import steps

__all__ = ["meaning", "metrics"]


def metrics(algorithm: Algorithm) -> list[str]:
    """The names of all metrics that the objectives of `algorithm` give, each with its model's role."""
    fields = fields_of(algorithm)
    batch = example_batch(fields, random_layout(1, pairs="chosen" in fields))
    found = [(one.role, compute_loss(one, *prepare_step(one, step))[1]) for one, step in steps(algorithm, batch)]
    return [f"{role}/{name}" for role, given in found for name in given]


def meaning(metric: str) -> tuple[str, str]:
    """(unit, what it means) of a metric of one model, as docs/metrics.md has it.

    Models share what is said of the policy, and terms what is said of a term. Raises: KeyError where nothing is said.
    """
    _, _, name = metric.partition("/")
    said = _said()
    return said.get(metric) or said["policy/loss/<term>" if name.startswith("loss/") else f"policy/{name}"]


@cache
def _said() -> dict[str, tuple[str, str]]:
    text = (Path(__file__).parents[1] / "metrics.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]
    return {name: (unit, why) for names, unit, why in cells for name in re.findall("`([^`]+)`", names)}
