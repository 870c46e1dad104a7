"""Killed at any moment and started again, a run ends as if it had never been killed, bit for bit."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import ppo
from purerl.config.schema import RunConfig
from purerl.store.rollouts import read_rollouts

from .killed import count_events, run
from .small import small

pytestmark = pytest.mark.slow


def _outcome(directory: Path) -> dict[str, Any]:
    """All that a run leaves behind, timings aside."""
    found: dict[str, Any] = {}
    for part in (directory / "initial_run", directory):
        lines = [json.loads(line) for line in (part / "metrics.jsonl").read_text().splitlines()]
        found[f"{part.name} metrics"] = [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]
        found[f"{part.name} model"] = (part / "final" / "model.safetensors").read_bytes()
        found[f"{part.name} checkpoints"] = sorted(path.name for path in (part / "checkpoints").iterdir())
    found["rollouts"] = [read_rollouts(directory / "rollouts", step) for step in (1, 2, 3, 4)]
    return found


def _compare(directory: Path, reference: Path) -> None:
    one, other = _outcome(directory), _outcome(reference)
    assert any(line.get("reward/mean") for line in other[f"{reference.name} metrics"]), "nothing to learn from"
    # The two directories have different names, and their parts' outcomes are in the same order.
    for (name, found), expected in zip(one.items(), other.values(), strict=True):
        assert found == expected, name


CONFIGS: dict[str, RunConfig] = {
    "grpo": small(),
    "ppo, one step off policy": small(
        algorithm=ppo.Config(kl_reward_coef=0.01), rollout=evolve(small().rollout, max_staleness=1)
    ),
}


def _kill_until_finished(config: RunConfig, directory: Path, moments: Iterator[dict[str, Any]]) -> int:
    """Start the run again and again, each time to be killed at the next of `moments`; how often it was killed."""
    kills = 0
    # A run may be killed just after it has marked itself as finished.
    while not (directory / "summary.json").exists():
        code = run(config, directory, **next(moments))
        assert code in (0, -9)
        kills += code == -9
    return kills


@pytest.mark.parametrize("name", CONFIGS)
def test_killed_at_files_and_phases(name: str, tmp_path: Path) -> None:
    config, rng = CONFIGS[name], random.Random(0)
    events = count_events(config, tmp_path / "whole")
    moments = ({"at_event": rng.randint(1, events // 3)} for _ in range(100))
    assert _kill_until_finished(config, tmp_path / "killed", moments) >= 5
    _compare(tmp_path / "killed", tmp_path / "whole")


def test_killed_at_random_moments(tmp_path: Path) -> None:
    config, rng = CONFIGS["grpo"], random.Random(1)
    begin = time.monotonic()
    assert run(config, tmp_path / "whole") == 0
    seconds = time.monotonic() - begin
    moments = ({"after": rng.uniform(0.2, 0.7) * seconds if k < 6 else None} for k in count())
    assert _kill_until_finished(config, tmp_path / "killed", moments) >= 1
    _compare(tmp_path / "killed", tmp_path / "whole")
