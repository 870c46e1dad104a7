"""The default recipe on two ranks learns what it learns in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop.runs import records

pytestmark = pytest.mark.parallel


def test_the_default_recipe_reaches_the_accuracy_of_one_process(tmp_path: Path) -> None:
    """tests/recipes/test_addition.py has the same limits for one process."""
    command = [sys.executable, "-m", "purerl_cli", "train", "addition", "--set", "placement.ranks=2"]
    subprocess.run([*command, "--directory", str(tmp_path / "run")], check=True, timeout=1500)
    steps = records(tmp_path / "run")
    assert steps[0]["eval/accuracy"] < 0.4
    assert steps[-1]["eval/accuracy"] > 0.9
