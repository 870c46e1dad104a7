"""The groups that an algorithm keeps: by which component of the reward, and from how many."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import dapo, grpo
from purerl.algos.modifiers import bypass, group_filter
from purerl.composition import Composition
from purerl.errors import ConfigError
from purerl.loop.train import train
from purerl.rewards.results import RewardResult
from purerl.rollouts.filtering import by_metric
from purerl.rollouts.types import Trajectory
from purerl.store.rollouts import read_rollouts
from purerl.store.settings import Checkpoint

from .runs import records, train_until, without_times
from .small import fake


def scored(completion: str, example: Any) -> dict[str, float]:
    """A score that differs in almost every group, and whether the completion starts with a digit below 2."""
    return {"score": sum(map(ord, completion)) / 1e4, "acc": float(completion[:1].isdecimal() and completion[:1] < "2")}


def _values(directory: Path, step: int, name: str) -> list[set[float]]:
    """The values of the column `name` in each group of a step."""
    groups = defaultdict(set)
    for row in read_rollouts(directory / "rollouts", step):
        groups[row["group"]].add(row[name])
    return [*groups.values()]


@pytest.mark.parametrize("algorithm", [dapo.Config(), Composition(grpo.Config(), (group_filter.Config(),))])
def test_groups_are_kept_by_the_component_that_is_named(algorithm: Any, tmp_path: Path) -> None:
    rollout = evolve(fake().rollout, max_resample_rounds=9)
    config = fake(2, algorithm=algorithm, rollout=rollout, evaluate=None)
    by_reward = train(config, rewards=[scored], directory=tmp_path / "reward").directory
    assert not all(len(values) > 1 for step in (1, 2) for values in _values(by_reward, step, "reward/acc"))
    config = evolve(config, rollout=evolve(rollout, filter_metric="acc"))
    by_acc = train(config, rewards=[scored], directory=tmp_path / "acc").directory
    assert all(len(values) == 2 for step in (1, 2) for values in _values(by_acc, step, "reward/acc"))


@pytest.mark.parametrize(("size", "staleness"), [(12, 0), (3, 0), (12, 1)])
def test_each_round_samples_so_many_prompts_and_surplus_groups_are_discarded(
    size: int, staleness: int, tmp_path: Path
) -> None:
    rollout = evolve(fake().rollout, gen_batch_size=size, max_resample_rounds=9, max_staleness=staleness)
    algorithm = Composition(dapo.Config(), (bypass.Config(),) if staleness else ())
    config = fake(3, algorithm=algorithm, rollout=rollout, evaluate=None, checkpoint=Checkpoint(every=1))
    run = train(config, directory=tmp_path / "run")
    metrics = without_times(records(run))
    for step, record in enumerate(metrics[1:], start=1):
        assert record["rollout/sampled"] % (4 * size) == 0
        kept = [row["group"] for row in read_rollouts(run.directory / "rollouts", step)]
        assert len({*kept}) == 4
        assert record["rollout/kept_fraction"] == 16 / record["rollout/sampled"]
    assert any(record["rollout/surplus"] > 0 for record in metrics[1:]) or size == 3
    if staleness:
        return  # draws in flight are sampled again with other weights
    train_until(1, config, directory=tmp_path / "run", fresh=True)
    assert without_times(records(train(config, directory=tmp_path / "run"))) == metrics


def test_unknown_component_stops_the_first_step(tmp_path: Path) -> None:
    config = fake(1, algorithm=dapo.Config(), rollout=evolve(fake().rollout, filter_metric="ac"), evaluate=None)
    with pytest.raises(ConfigError) as error:
        train(config, rewards=[scored], directory=tmp_path / "run")
    assert str(error.value) == (
        "rollout.filter_metric\n  got:  'ac'\n"
        "  need: a component of the reward of each completion, such as: score, acc\n  do:   did you mean 'acc'?"
    )


def test_rows_of_an_episode_have_its_component_and_a_row_without_a_reward_has_none() -> None:
    result = RewardResult({"acc": 0.5}, {"acc": 2.0})
    fields = {"tokens": [1, 2, 3, 4], "action": [False, True, True, False], "reward": [0.0, 0.0, 2.0, 0.0]}
    rows = [
        Trajectory({**fields, "row": 0, "episode": 7}, result=result),
        Trajectory({**fields, "row": 1, "episode": 7}, result=result),
        Trajectory({**fields, "row": 2, "episode": 8, "action": [False] * 4}, result=RewardResult()),
    ]
    assert [row["reward"] for row in by_metric(rows, "acc")] == [[0.0, 0.0, 1.0, 0.0]] * 2 + [[0.0] * 4]
