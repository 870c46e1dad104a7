"""purerl's reward `math` beside math-verify, on answers whose labels purerl did not write."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from purerl.rewards.math import math

LABELS = tomllib.loads((Path(__file__).parents[1] / "rewards" / "answer_labels.toml").read_text(encoding="utf-8"))


def test_at_least_as_many_right_answers_and_no_more_wrong_ones_are_accepted() -> None:
    library = pytest.importorskip("math_verify", reason="math-verify is not installed: nox -s oracle")
    accepted = {("purerl", 0): 0, ("purerl", 1): 0, ("math-verify", 0): 0, ("math-verify", 1): 0}
    for completion, truth, right in LABELS["labels"]:
        accepted["purerl", right] += math(completion, {"answer": truth}) == 1
        accepted["math-verify", right] += library.verify(library.parse(f"${truth}$"), library.parse(completion))
    assert accepted["purerl", 1] >= accepted["math-verify", 1] > 0
    assert accepted["purerl", 0] <= accepted["math-verify", 0]
