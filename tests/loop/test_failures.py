"""A sample on which an engine, an environment or a workflow fails is missing: counted, shown, never reward 0."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from purerl.algos import dapo, grpo
from purerl.algos.modifiers import importance_weight
from purerl.backends.fake.engine import FakeGenerator
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import EngineError, RewardError, RolloutError
from purerl.loop.train import train
from purerl.rewards.outcomes import FailedPart, Failure
from purerl.rewards.settings import Reward, RewardWorkers
from purerl.rollouts import sampled
from purerl.rollouts.failures import FailureLimit, remedy
from purerl.rollouts.types import Draw, Generate, Trajectory, Workflow
from purerl.store.rollouts import read_rollouts
from purerl.store.settings import Checkpoint

from .runs import failures, records
from .small import fake

LENIENT = RewardWorkers(max_failure_rate=1.0)


def _engine(error_rate: float, **changes: Any) -> RunConfig:
    """The engine fails on this share of its requests."""
    generator = evolve(fake().generator, error_rate=error_rate)
    return fake(**{"generator": generator, "max_steps": 2, "evaluate": None} | changes)


def _game(mishap: str, every: int, timeout: float = 60.0, **changes: Any) -> RunConfig:
    """An environment to which `mishap` happens in its second turn, with examples whose answer `every` divides."""
    kwargs = {"mishap": mishap, "every": every}
    settings = EnvironmentSettings(factory="tests.loop.games:Evens", kwargs=kwargs, timeout=timeout, num_workers=1)
    rollout = evolve(fake().rollout, max_tokens=8, stop_strings=("a", "d", "g"))
    given = {"environment": settings, "rewards": (), "rollout": rollout, "max_steps": 2, "evaluate": None}
    return fake(**given | changes)


def _check_missing_samples(directory: Path, function: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Some samples of the run are missing: masked out, without a reward, counted, logged, and shown once."""
    logged, metrics = failures(directory), records(directory)[1:]
    assert {(failure["function"], failure["kind"]) for failure in logged} == {(function, kind)}
    rows = [row for step in (1, 2) for row in read_rollouts(directory / "rollouts", step)]
    missing = [row for row in rows if row["finish"] == "error"]
    assert 0 < len(missing) < len(rows) == 32
    assert all(not any(row["mask"]) and not any(row["reward"]) for row in missing)
    assert all(any(row["mask"]) for row in rows if row["finish"] != "error")
    assert sum(record["reward/failed"] * 16 for record in metrics) == pytest.approx(len(missing))
    assert len(logged) == len(missing)
    assert [record["rollout/failed"] for record in metrics] == [0, 0]
    shown = [record.getMessage() for record in caplog.records if "a sample is missing" in record.getMessage()]
    assert len(shown) == 1
    assert f"  | {function} {kind}\n" in shown[0]


# --- an engine and an environment -------------------------------------------------------------------------------


def test_requests_on_which_the_engine_fails_are_missing_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(_engine(0.2, reward_workers=LENIENT), directory=tmp_path / "run")
    _check_missing_samples(tmp_path / "run", "the generator", "failed", caplog)


@pytest.mark.slow
@pytest.mark.parametrize(("mishap", "kind", "timeout"), [("raises", "raised", 60.0), ("hangs", "timed out", 1.5)])
def test_episodes_in_which_the_environment_fails_are_missing_samples(
    mishap: str, kind: str, timeout: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(_game(mishap, 3, timeout, reward_workers=LENIENT), directory=tmp_path / "run")
    _check_missing_samples(tmp_path / "run", "tests.loop.games:Evens", kind, caplog)
    first = failures(tmp_path / "run")[0]
    assert (first["step"], first["row"]) == (1, "2/0")
    assert first["traceback"].startswith("draw 2, sample 0, turn 1:\n")
    assert f"in {mishap}\n" in first["traceback"]
    timed_out = sum(record["reward/timed_out"] for record in records(tmp_path / "run")[1:])
    assert (timed_out > 0) == (mishap == "hangs")


def test_process_of_an_environment_that_dies_is_replaced(tmp_path: Path) -> None:
    train(_game("dies", 3, reward_workers=LENIENT, max_steps=3), directory=tmp_path / "run")
    logged = failures(tmp_path / "run")
    assert {failure["kind"] for failure in logged} == {"died"}
    assert {failure["step"] for failure in logged} == {1, 2, 3}, "the process of a later step died too"


ENGINE_ERROR = (
    r"the generator failed\n(.*\n)*"
    r".*do:   see the message of the engine, or raise reward_workers.max_failure_rate; the run can be resumed"
)
ENVIRONMENT_ERROR = (
    r"tests.loop.games:Evens raised\n  \| draw \d, (.*\n)*  \| ValueError: an unlucky game\n(.*\n)*"
    r".*do:   fix the environment, or raise environment.timeout or reward_workers.max_failure_rate; the run"
)


@pytest.mark.parametrize(("config", "message"), [(_engine(0.8), ENGINE_ERROR), (_game("raises", 1), ENVIRONMENT_ERROR)])
def test_too_many_missing_samples_stop_the_run_with_their_remedy(
    config: RunConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RolloutError, match=r"^too many completions failed; the first failure:\n  \| " + message):
        train(config, directory=tmp_path / "run")


def test_remedy_is_that_of_what_failed_most_often() -> None:
    parts: tuple[FailedPart, ...] = ("reward", "environment", "environment", "reward", "reward")
    all_failures = [Failure(f"{part} {k}", "raised", "", part) for k, part in enumerate(parts)]
    for count, error, first in ((3, RolloutError, "environment 1"), (5, RewardError, "reward 0")):
        limit = FailureLimit(1.0, remedy, expected=count - 1)
        for failure in all_failures[: count - 1]:
            limit.add(failure)
        with pytest.raises(error, match=f"first failure:\n  \\| {first} raised\n"):
            limit.add(all_failures[count - 1])


# --- a workflow --------------------------------------------------------------------------------------------------


@frozen
class _RaisesOnSomeDraws:
    """A workflow with a bug: it raises an exception on every third draw."""

    workflow: Workflow

    async def __call__(self, draw: Draw, generate: Generate) -> list[Trajectory]:
        if draw.number % 3 == 1:
            raise KeyError("a bug")
        return await self.workflow(draw, generate)


@pytest.fixture
def _with_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sampled.open_workflow
    monkeypatch.setattr(sampled, "open_workflow", lambda *args, **kwargs: _RaisesOnSomeDraws(original(*args, **kwargs)))


def _distinct() -> Any:
    """A reward function that never returns the same value twice, so that no group is dropped for equal rewards."""
    counter = itertools.count()
    return [Reward(lambda completion, example: next(counter) / 100)]


@pytest.mark.usefixtures("_with_a_bug")
def test_step_with_a_failed_group_trains_the_others_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = fake(reward_workers=LENIENT, max_steps=2, evaluate=None)
    train(config, rewards=_distinct(), directory=tmp_path / "run")
    metrics, folder = records(tmp_path / "run")[1:], tmp_path / "run" / "rollouts"
    groups = [[*dict.fromkeys(row["group"] for row in read_rollouts(folder, step))] for step in (1, 2)]
    assert groups == [[0, 2, 3], [5, 6]]
    assert [record["rollout/failed"] for record in metrics] == [1, 2]
    assert [record["rollout/sampled"] for record in metrics] == [12, 8]
    assert [failure["row"] for failure in failures(tmp_path / "run") if failure["step"] == 1] == [
        *("1/0", "1/1", "1/2", "1/3")
    ]
    assert "the workflow of draw 1 raised" in caplog.text
    assert "KeyError: 'a bug'" in caplog.text


@pytest.mark.usefixtures("_with_a_bug")
def test_failed_group_is_replaced_like_a_dropped_one(tmp_path: Path) -> None:
    rollout = evolve(fake().rollout, max_resample_rounds=2)
    config = fake(algorithm=dapo.Config(), rollout=rollout, reward_workers=LENIENT, max_steps=2, evaluate=None)
    train(config, rewards=_distinct(), directory=tmp_path / "run")
    folder = tmp_path / "run" / "rollouts"
    groups = [[*dict.fromkeys(row["group"] for row in read_rollouts(folder, step))] for step in (1, 2)]
    assert groups == [[0, 2, 3, 5], [6, 8, 9, 11]]
    assert [record["rollout/failed"] for record in records(tmp_path / "run")[1:]] == [2, 2]


@pytest.mark.usefixtures("_with_a_bug")
def test_workflow_that_raises_too_often_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"the workflow of draw 1 raised\n(.*\n)*.*do:   fix the workflow, or raise"):
        train(fake(evaluate=None), directory=tmp_path / "run")


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_run_stops_with_a_checkpoint_if_the_engine_fails_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_staleness: int
) -> None:
    """The state before the step that was being sampled; resuming ends as if nothing had happened."""
    config = fake(max_steps=6, evaluate=None, checkpoint=Checkpoint(every=100))
    algorithm = Composition(grpo.Config(), (importance_weight.Config(),)) if max_staleness else grpo.Config()
    config = evolve(config, algorithm=algorithm, rollout=evolve(config.rollout, max_staleness=max_staleness))
    train(config, directory=tmp_path / "whole")
    collect = FakeGenerator.collect

    def fail(self: FakeGenerator, timeout: float | None = None) -> Any:
        if len(records(tmp_path / "run")) == 4:
            raise EngineError("the server has failed")
        return collect(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(FakeGenerator, "collect", fail)
        with pytest.raises(EngineError, match="the server has failed"):
            train(config, directory=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["000003"]
    train(config, directory=tmp_path / "run")
    rewards = [[record["reward/mean"] for record in records(tmp_path / name)[1:]] for name in ("run", "whole")]
    assert rewards[0][:3] == rewards[1][:3]
    assert len(rewards[0]) == 6
    if max_staleness == 0:
        assert rewards[0] == rewards[1]
