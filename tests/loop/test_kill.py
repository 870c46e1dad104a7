"""A run that is killed at any moment and started again gives the same result as an uninterrupted run, bit for bit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import ppo
from purerl.algos.modifiers import kl_reward
from purerl.composition import Composition
from purerl.config.schema import Role, RunConfig
from purerl.store.rollouts import read_rollouts

from .killed import count_events, run
from .runs import records, without_times
from .small import small

pytestmark = pytest.mark.slow


def _outcome(directory: Path) -> dict[str, Any]:
    """Everything that a run writes, except for times."""
    outcome: dict[str, Any] = {}
    for part in (directory / "initial_run", directory):
        outcome[f"{part.name} metrics"] = without_times(records(part))
        outcome[f"{part.name} model"] = (part / "final" / "model.safetensors").read_bytes()
        outcome[f"{part.name} checkpoints"] = sorted(path.name for path in (part / "checkpoints").iterdir())
    outcome["rollouts"] = [read_rollouts(directory / "rollouts", step) for step in (1, 2, 3, 4)]
    return outcome


def _compare(directory: Path, reference: Path) -> None:
    outcome, expected = _outcome(directory), _outcome(reference)
    metrics = expected[f"{reference.name} metrics"]
    assert any(record.get("reward/mean") for record in metrics), "the run has no rewards"
    # The directories have different names; the parts of both outcomes are in the same order.
    for (name, value), expected_value in zip(outcome.items(), expected.values(), strict=True):
        assert value == expected_value, name


CONFIGS: dict[str, RunConfig] = {
    "grpo": small(),
    "ppo, one step off policy, reference follows the policy": small(
        algorithm=Composition(ppo.Config(), (kl_reward.Config(coef=0.01),)),
        rollout=evolve(small().rollout, max_staleness=1),
        roles={"reference": Role(update_every=1, update_mix=0.5)},
    ),
}


def _kill_until_finished(config: RunConfig, directory: Path, moments: Iterator[dict[str, Any]]) -> int:
    """Start the run until it is finished, and kill it each time at the next of `moments`; return how often."""
    kills = 0
    # A run may be killed just after it has been marked as finished.
    while not (directory / "summary.json").exists():
        code = run(config, directory, **next(moments))
        assert code in (0, -9)
        kills += code == -9
    return kills


@pytest.mark.parametrize("name", CONFIGS)
def test_run_killed_at_events_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    config, rng = CONFIGS[name], random.Random(0)
    events = count_events(config, tmp_path / "uninterrupted")
    # From one checkpoint to the next a run needs up to a third of all events.
    moments = ({"at_event": rng.randint(1, 2 * events // 5)} for _ in range(100))
    assert _kill_until_finished(config, tmp_path / "killed", moments) >= 5
    _compare(tmp_path / "killed", tmp_path / "uninterrupted")


def test_run_killed_at_random_times_resumes_bit_for_bit(tmp_path: Path) -> None:
    config, rng = CONFIGS["grpo"], random.Random(1)
    start = time.monotonic()
    assert run(config, tmp_path / "uninterrupted") == 0
    seconds = time.monotonic() - start
    directory = tmp_path / "killed"
    while not _kill_until_finished(config, directory, _random_times(seconds, rng)):  # the machine is faster now
        seconds, directory = seconds / 2, directory.with_name(f"{directory.name} again")
    _compare(directory, tmp_path / "uninterrupted")


def _random_times(seconds: float, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Six random times during a run that takes `seconds`, then none."""
    return ({"after": rng.uniform(0.2, 0.7) * seconds if k < 6 else None} for k in count())
