"""The default recipe on two ranks learns what it learns in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.loop.runs import records
from tests.placement.forked_launcher import run_forked

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize("accuracy", [0.75, pytest.param(0.9, marks=pytest.mark.slow)])
def test_the_default_recipe_learns(accuracy: float, tmp_path: Path) -> None:
    """Until the accuracy that tests/recipes/test_addition.py requires of one process, or half of the way."""
    limit = f"stop_when.at_least={accuracy + 0.01:g}"
    settings = ("placement.ranks=2", "stop_when.metric=eval/accuracy", limit)
    command = [sys.executable, "-m", "purerl_cli", "train", "addition", "--directory", str(tmp_path / "run")]
    run_forked([*command, *(f"--set={setting}" for setting in settings)], check=True, timeout=1500)
    steps = records(tmp_path / "run")
    assert steps[0]["eval/accuracy"] < 0.65
    assert steps[-1]["eval/accuracy"] > accuracy
