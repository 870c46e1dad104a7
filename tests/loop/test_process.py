"""What a run does to the process that it is in: nothing, once it is over."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.errors import RewardError
from purerl.loop.process import random_states
from purerl.loop.train import train

from .small import fake


def by_chance(completion: str, example: Any) -> float:
    """As much as three generators of this process say."""
    return random.random() + numpy.random.random() + float(torch.rand(()))


def test_a_reward_function_that_asks_this_processes_generators_is_told_the_same_by_the_same_seed(
    tmp_path: Path,
) -> None:
    def judged(config: RunConfig) -> list[float]:
        # In one directory: the fake engine draws a model from its path.
        summary = train(config, rewards=[by_chance], directory=tmp_path / "run", fresh=True)
        return [summary.before["eval/reward"], summary.after["eval/reward"]]

    first = judged(fake(seed=2**40))
    random.seed(9)
    numpy.random.seed(9)
    torch.manual_seed(9)
    assert judged(fake(seed=2**40)) == first
    assert judged(fake(seed=3)) != first


def test_the_generators_go_on_where_they_were(tmp_path: Path) -> None:
    before = random_states()
    train(fake(), rewards=[by_chance], directory=tmp_path / "run")
    for state, was in zip(random_states(), before, strict=True):
        assert repr(state) == repr(was)


def test_threads_are_those_of_each_part_of_the_run_and_the_processes_own_afterwards(tmp_path: Path) -> None:
    own = torch.get_num_threads()
    first = evolve(fake(), name="first", prepare_data=None, num_threads=own + 1)
    for changes, expected in (({"initial_run": first}, own), ({"num_threads": own + 2}, own + 2)):
        seen = set()

        def broken(completion: str, example: Any, seen: set[int] = seen) -> float:
            seen.add(torch.get_num_threads())
            raise ValueError("no")

        with pytest.raises(RewardError):
            train(fake(**changes), rewards=[broken], directory=tmp_path / f"{expected}")
        assert seen == {expected}
        assert torch.get_num_threads() == own
