"""Random numbers depend on the seed of the run and on what they are drawn for, not on workers or interruptions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from purerl.config.schema import RunConfig
from purerl.loop.train import train
from purerl.rewards.settings import RewardWorkers
from purerl.store.rollouts import read_rollouts

from .random_rewards import drawn
from .runs import records, train_until, without_times
from .small import fake

DRAWN = "tests.loop.random_rewards:drawn"


def _result(directory: Path) -> tuple[Any, Any]:
    rollouts = [read_rollouts(directory / "rollouts", record["step"]) for record in records(directory)[1:]]
    return without_times(records(directory)), rollouts


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not(tmp_path: Path) -> None:
    def metrics(seed: int) -> list[dict[str, Any]]:
        # In one directory, because the fake engine draws the weights of a model from its path.
        return without_times(records(train(fake(seed=seed), directory=tmp_path / "run", fresh=True)))

    first = metrics(1)
    assert metrics(1) == first
    assert metrics(2) != first


@pytest.mark.slow
def test_random_rewards_are_the_same_with_0_1_and_2_workers_and_after_a_resume(tmp_path: Path) -> None:
    def run(config: RunConfig, **kwargs: Any) -> tuple[Any, Any]:
        return _result(train(config, directory=tmp_path / "run", fresh=True, **kwargs).directory)

    seeded = {"seed": 2**40}
    in_process, other_seed = run(fake(**seeded), rewards=[drawn]), run(fake(), rewards=[drawn])
    assert in_process != other_seed
    rewards = [sum(row["reward"]) for rows in in_process[1] for row in rows]
    assert len(set(rewards)) == len(rewards) == 64, "each completion has a random number of its own"

    for num_workers in (1, 2):
        workers = RewardWorkers(num_workers=num_workers)
        assert run(fake(**seeded, rewards=(DRAWN,), reward_workers=workers)) == in_process

    train_until(3, fake(**seeded), rewards=[drawn], directory=tmp_path / "run", fresh=True)
    random.seed(9)
    numpy.random.seed(9)
    torch.manual_seed(9)
    train(fake(**seeded), rewards=[drawn], directory=tmp_path / "run")
    assert _result(tmp_path / "run") == in_process
