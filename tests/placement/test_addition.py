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
    settings = ("placement.ranks=2", "stop_when.metric=eval/accuracy", "stop_when.at_least=0.91")
    command = [sys.executable, "-m", "purerl_cli", "train", "addition", "--directory", str(tmp_path / "run")]
    subprocess.run([*command, *(f"--set={setting}" for setting in settings)], check=True, timeout=1500)
    steps = records(tmp_path / "run")
    assert steps[0]["eval/accuracy"] < 0.4
    assert steps[-1]["eval/accuracy"] > 0.9
