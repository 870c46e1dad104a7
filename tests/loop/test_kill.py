"""A run that is killed at any moment and started again gives the same result as an uninterrupted run, bit for bit.

If what it samples depends on time, it loses no draw, trains none twice, and trains no token that is too old.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .killed import count_events, run
from .killed_runs import KINDS, TIMED, check_draws, check_equal, kill_until_finished
from .runs import records

pytestmark = pytest.mark.slow


def _kill_at_events(name: str, folder: Path, *, kills: int, seed: int) -> None:
    """Kill a run of one kind at `kills` random events, several times from its beginning if needed, and check it."""
    config, rng = {**KINDS, **TIMED}[name](folder), random.Random(f"{seed} {name}")
    events = count_events(config, folder / "uninterrupted")
    metrics = records(folder / "uninterrupted")
    assert len(metrics) > 3, "the run has few steps"
    assert config.rollout is None or any(record.get("reward/mean") for record in metrics), "the run has no rewards"
    assert config.environment is None or metrics[-1]["environment/turns"] > 1.5, "the episodes have one turn"
    if config.rollout is not None and config.rollout.max_staleness:
        assert any(record.get("rollout/staleness_max") for record in metrics), "the run is on policy"
    moments = ({"at_event": rng.randint(1, events // 2)} for _ in count())
    done = 0
    for attempt in count():
        directory = folder / f"killed {attempt}"
        done += kill_until_finished(config, directory, moments, max_kills=kills - done)
        if name in KINDS:
            check_equal(directory, folder / "uninterrupted")
        else:
            check_draws(directory, config)
        if done >= kills:
            return


FAST = {
    "grpo": 2,
    "ppo, one step off policy, reference follows the policy": 2,
    "environment in the event loop, one step off policy": 2,
    "checkpoints in the background, three steps off policy": 2,
}
"""Number of kills of these kinds in the tests that are not marked soak. Those that are test all kinds."""


@pytest.mark.parametrize("name", FAST)
def test_run_killed_at_events_resumes(name: str, tmp_path: Path) -> None:
    _kill_at_events(name, tmp_path, kills=FAST[name], seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*KINDS, *TIMED])
def test_run_of_each_kind_killed_at_events_resumes(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = int(pytestconfig.getoption("--kills")) / (len(KINDS) + len(TIMED))
    _kill_at_events(name, tmp_path, kills=math.ceil(kills), seed=1)


@pytest.mark.soak
def test_run_killed_at_random_times_resumes_bit_for_bit(tmp_path: Path) -> None:
    config, rng = KINDS["grpo"](tmp_path), random.Random(1)
    start = time.monotonic()
    assert run(config, tmp_path / "uninterrupted") == 0
    seconds = time.monotonic() - start
    directory = tmp_path / "killed"
    while not kill_until_finished(config, directory, _random_times(seconds, rng)):  # the machine is faster now
        seconds, directory = seconds / 2, directory.with_name(f"{directory.name} again")
    check_equal(directory, tmp_path / "uninterrupted")


def _random_times(seconds: float, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Six random times during a run that takes `seconds`, then none."""
    return ({"after": rng.uniform(0.2, 0.7) * seconds if k < 6 else None} for k in count())
