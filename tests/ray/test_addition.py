"""The default recipe with trainers and a generator in actors, asynchronously, learns what it learns in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop.runs import records

pytest.importorskip("ray", reason="Ray is not installed; nox -s ray has an environment with it")

SETTINGS = (
    "placement.kind=ray",
    "placement.trainers.count=2",
    "placement.generators.count=1",
    "rollout.max_staleness=1",
    "algorithm.bypass=true",
    "stop_when.metric=eval/accuracy",
    "stop_when.at_least=0.91",
)


def test_the_default_recipe_reaches_the_accuracy_of_one_process(tmp_path: Path) -> None:
    """tests/recipes/test_addition.py has the same limits for one process."""
    command = [sys.executable, "-m", "purerl_cli", "train", "addition", "--directory", str(tmp_path / "run")]
    settings = [argument for setting in SETTINGS for argument in ("--set", setting)]
    subprocess.run([*command, *settings], check=True, timeout=1500)
    steps = records(tmp_path / "run")
    assert steps[0]["eval/accuracy"] < 0.65
    assert steps[-1]["eval/accuracy"] > 0.9
    assert max(record.get("rollout/staleness_max", 0) for record in steps) == 1
