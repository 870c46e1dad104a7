"""Runs whose checkpoints have groups that wait are stopped, extended, damaged, exported, and continued by others."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from purerl.algos import grpo
from purerl.algos.modifiers import bypass
from purerl.composition import Composition
from purerl.config.schema import RunConfig
from purerl.data.chat import Prompt
from purerl.errors import RunStoppedError
from purerl.loop.callbacks import Callbacks
from purerl.loop.train import Summary, train
from purerl.loop.window import Window
from purerl.rewards.settings import RewardWorkers
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.types import Draw, Group, Trajectory
from purerl.runs.evaluation import evaluation_of_run
from purerl.runs.export import export_model
from purerl.store.checkpoint import restore
from purerl.store.groups import read_groups
from purerl.store.rollouts import read_rollouts
from tests.store.damage import flip

from .runs import records, train_until, without_times
from .small import fake

pytestmark = pytest.mark.slow

GROUPS = Path("waiting", "groups.parquet")


def _config(max_steps: int, *, max_staleness: int = 2, **changes: Any) -> RunConfig:
    """A run whose steps end before all groups have their rewards. It has a checkpoint of every third step."""
    settings: dict[str, Any] = {
        "algorithm": Composition(grpo.Config(), (bypass.Config(),)),
        "rollout": evolve(fake().rollout, max_staleness=max_staleness),
        "rewards": ("tests.loop.rewards:slow_digits",),
        "reward_workers": RewardWorkers(num_workers=1),
        "evaluate": evolve(fake().evaluate, every=4, max_examples=4),
        "checkpoint": evolve(fake().checkpoint, every=3),
        "max_steps": max_steps,
    }
    return fake(**settings | changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """A run of eight steps without an interruption."""
    return train(_config(8), directory=tmp_path_factory.mktemp("whole") / "run")


def _check_equal(run: Summary, whole: Summary) -> None:
    assert without_times(records(run)) == without_times(records(whole))
    model = "model.safetensors"
    assert (run.model / model).read_bytes() == (whole.model / model).read_bytes()


def _trained(run: Summary, steps: Sequence[int]) -> list[int]:
    """The draws that these steps have trained on, in order."""
    rows = [read_rollouts(run.directory / "rollouts", step) for step in steps]
    return [group for step in rows for group in dict.fromkeys(row["group"] for row in step)]


def _stop_before(call: int, config: RunConfig, directory: Path) -> None:
    """Stop the run before the step with this number, counted from 1 in this process."""
    calls: list[None] = []

    def should_stop() -> bool:
        calls.append(None)
        return len(calls) == call

    with pytest.raises(RunStoppedError):
        train(config, directory=directory, callbacks=Callbacks(should_stop=should_stop))


def test_run_that_is_stopped_at_any_step_equals_an_uninterrupted_one(whole: Summary, tmp_path: Path) -> None:
    for call in (2, 2, 3):  # after steps 1, 2 and 4
        _stop_before(call, _config(8), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"000003", "000004"}
    _check_equal(train(_config(8), directory=tmp_path / "run"), whole)


def test_extended_run_equals_a_longer_one(whole: Summary, tmp_path: Path) -> None:
    short = train(_config(4), directory=tmp_path / "run")
    state = restore(short.directory / "checkpoints" / "000004", {})
    assert (state["num_draws"], state["in_flight"]) == (24, ()), "everything that was drawn waits"
    _check_equal(train(_config(8), directory=tmp_path / "run"), whole)


def test_cadence_of_evaluations_and_checkpoints_changes_no_sample(whole: Summary, tmp_path: Path) -> None:
    rare, often = evolve(_config(8).evaluate, every=8), evolve(fake().checkpoint, every=1)
    other = train(_config(8, evaluate=rare, checkpoint=often), directory=tmp_path / "run")
    columns = ("group", "tokens", "version", "reward")
    for step in range(1, 9):
        rows = [read_rollouts(run.directory / "rollouts", step) for run in (whole, other)]
        first, second = ([[row[name] for name in columns] for row in each] for each in rows)
        assert first == second


def test_damaged_waiting_groups_make_the_checkpoint_unusable(
    whole: Summary, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_until(7, _config(8), directory=tmp_path / "run")
    flip(tmp_path / "run" / "checkpoints" / "000006" / GROUPS)
    _check_equal(train(_config(8), directory=tmp_path / "run"), whole)
    assert f"000006 cannot be used: {GROUPS} " in caplog.text


def test_model_of_a_checkpoint_with_waiting_groups_is_exported_and_evaluated(whole: Summary, tmp_path: Path) -> None:
    checkpoint = whole.directory / "checkpoints" / "000008"
    assert len(read_groups(checkpoint / GROUPS)) == 8
    exported = export_model(whole.directory, "8", tmp_path / "model")
    assert (exported / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    assert not (exported / "waiting").exists()
    unfinished = Path(shutil.copytree(whole.directory, tmp_path / "run"))
    (unfinished / "summary.json").unlink()
    assert evaluation_of_run(unfinished, {}).checkpoint == unfinished / "checkpoints" / checkpoint.name


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_another_run_samples_the_draws_of_waiting_groups_again(
    max_staleness: int, whole: Summary, tmp_path: Path
) -> None:
    """Its window is smaller than the number of draws that were in flight or waited."""
    config = _config(12, max_staleness=max_staleness, rewards=("tests.loop.rewards:first_is_even",))
    run = train(config, directory=tmp_path / "run", resume_from=whole.directory)
    assert _trained(run, range(9, 13)) == [*range(32, 48)]
    metrics = records(run)[9:]
    assert metrics[0]["rollout/staleness_max"] == 0, "the groups that waited had the rewards of another function"
    assert max(record["rollout/staleness_max"] for record in metrics) == max_staleness


def test_another_run_with_a_small_window_is_interrupted_without_losing_a_draw(whole: Summary, tmp_path: Path) -> None:
    config = _config(12, max_staleness=0, batch_size=2)
    train(evolve(config, max_steps=9), directory=tmp_path / "run", resume_from=whole.directory)
    state = restore(tmp_path / "run" / "checkpoints" / "000009", {})
    assert (state["num_draws"], state["in_flight"]) == (40, (34, 35, 36, 37, 38, 39))
    run = train(config, directory=tmp_path / "run")
    assert _trained(run, range(9, 13)) == [*range(32, 40)]


# --- the window -------------------------------------------------------------------------------------------------


class _Submitted(Rollouts):
    """Remembers the draws that are submitted."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    def submit(self, draws: Sequence[Draw]) -> None:
        self.submitted += [draw.number for draw in draws]

    @property
    def in_flight(self) -> list[int]:
        return self.submitted

    def collect(self, timeout: float | None = None, *, draws: Any = None) -> list[Group]:
        return []


def _draws(first: int, count: int) -> list[Draw]:
    return [Draw(n, n, {}, Prompt("", []), str(n), (0, n)) for n in range(first, first + count)]


def _group(draw: int, version: int) -> Group:
    return Group(draw, (Trajectory({"version": [0, version], "action": [False, True]}),))


@pytest.mark.parametrize(
    ("max_staleness", "order", "kept", "submitted"),
    [
        (3, "drawn", [7, 8, 9], [6, 10, 11, 12, 13]),
        (1, "drawn", [7, 9], [6, 8]),
        (0, "drawn", [], [6, 7]),
        (3, "finished", [7, 8, 9], [6, 10, 11, 12, 13]),
        (1, "finished", [7, 8, 9], [6]),
        (0, "finished", [], [6, 7]),
    ],
)
def test_groups_that_would_become_too_old_are_sampled_again(
    max_staleness: int, order: Any, kept: list[int], submitted: list[int]
) -> None:
    """After step 5, batches of 2: groups 7, 8 and 9 wait, with weights of the steps 4, 4 and 5."""
    rollouts = _Submitted()
    window = Window(rollouts, _draws, batch_size=2, max_staleness=max_staleness, order=order)
    window.restore(10, [6], [_group(7, 4), _group(8, 4), _group(9, 5)], step=5)
    assert [group.draw for group in window.waiting] == kept
    assert sorted([*window.in_flight, *kept]) == [6, 7, 8, 9]
    window.take_groups(0, 5)
    assert rollouts.submitted == submitted
