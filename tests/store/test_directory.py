"""The run directory: which configurations it accepts, its lock, and what `fresh` and `rewind` remove."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.schema import RunConfig
from purerl.config.structure import read_toml
from purerl.errors import RunDirectoryError
from purerl.loop.train import claim_directory
from purerl.monitoring.trackers import tensorboard, wandb
from purerl.recipes.addition import addition
from purerl.rewards.settings import RewardWorkers
from purerl.store.lines import read_lines


def test_same_configuration_is_accepted_again(tmp_path: Path) -> None:
    claim_directory(tmp_path / "run", addition()).release()
    claim_directory(tmp_path / "run", addition()).release()


def test_another_configuration_is_refused_with_the_changed_settings(tmp_path: Path) -> None:
    config = addition()
    claim_directory(tmp_path, config).release()
    (tmp_path / "metrics.jsonl").touch()
    changed = evolve(config, seed=7, trainer=evolve(config.trainer, lr=0.5))
    with pytest.raises(RunDirectoryError) as caught:
        claim_directory(tmp_path, changed)
    assert "seed: 0 there, 7 now" in str(caught.value)
    assert f"trainer.lr: {config.trainer.lr} there, 0.5 now" in str(caught.value)
    assert "--fresh" in str(caught.value)
    claim_directory(tmp_path, changed, fresh=True).release()


def test_run_that_has_not_started_is_replaced(tmp_path: Path) -> None:
    claim_directory(tmp_path, addition()).release()
    changed = evolve(addition(), seed=7)
    claim_directory(tmp_path, changed).release()
    assert read_toml(tmp_path / "config.toml", RunConfig) == changed


def test_trackers_and_reward_workers_may_change(tmp_path: Path) -> None:
    config = addition()
    claim_directory(tmp_path, config).release()
    (tmp_path / "metrics.jsonl").touch()
    initial = evolve(config.initial_run, trackers=(wandb.Config(),))
    tracked = evolve(config, trackers=(tensorboard.Config(),), initial_run=initial)
    slow = evolve(config, reward_workers=RewardWorkers(timeout=60.0, max_failure_rate=0.5))
    for changed in (tracked, evolve(tracked, trackers=(tensorboard.Config(directory="logs"),)), slow, config):
        claim_directory(tmp_path, changed).release()
        assert read_toml(tmp_path / "config.toml", RunConfig) == changed


@pytest.mark.parametrize("target", ["mine.txt", "nowhere"])
def test_lock_that_is_a_link_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (run := tmp_path / "run").mkdir()
    (run / "lock").symlink_to(tmp_path / target)
    with pytest.raises(RunDirectoryError, match="lock'\n  got:  a link\n  need: a file of the run"):
        claim_directory(run, addition())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "run"]


def test_not_everybody_can_lock_a_directory(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        claim_directory(tmp_path / "run", addition()).release()
    finally:
        os.umask(before)
    assert (tmp_path / "run" / "lock").stat().st_mode & 0o777 == 0o640


def test_directory_is_locked_until_it_is_released(tmp_path: Path) -> None:
    claimed = claim_directory(tmp_path, addition())
    with pytest.raises(RunDirectoryError, match="another process"):
        claim_directory(tmp_path, addition())
    claimed.release()
    claim_directory(tmp_path, addition()).release()


@pytest.mark.parametrize("fresh", [False, True])
def test_directory_with_other_files_is_refused_and_unchanged(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match="other files: thesis.tex"):
        claim_directory(tmp_path, addition(), fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("fresh", [False, True])
def test_config_toml_of_another_program_is_not_a_run(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "config.toml").write_text('baseURL = "https://example.org"\n')
    (tmp_path / "content").mkdir()
    with pytest.raises(RunDirectoryError, match="other files: config.toml, content"):
        claim_directory(tmp_path, addition(), fresh=fresh)
    assert (tmp_path / "content").is_dir()


def test_fresh_removes_only_files_of_the_run(tmp_path: Path) -> None:
    run, linked = tmp_path / "run", tmp_path / "linked"
    claim_directory(run, addition()).release()
    for name in ("checkpoints", "src"):
        (run / name).mkdir()
    linked.mkdir()
    (linked / "file").touch()
    (run / "rollouts").symlink_to(linked)
    claim_directory(run, evolve(addition(), seed=9), fresh=True).release()
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "lock", "src"]
    assert (linked / "file").exists()


def test_file_instead_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirectoryError, match="a file"):
        claim_directory(tmp_path / "run", addition())


def test_run_that_was_killed_while_starting_can_be_claimed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "config.toml.partial").write_text("name = ")
    claim_directory(tmp_path, addition()).release()


def test_rewind_removes_later_steps_and_an_incomplete_line(tmp_path: Path) -> None:
    directory = claim_directory(tmp_path, addition())
    for step in range(4):
        directory.log({"step": step, "reward/mean": 0.1 * step})
        directory.log_failure({"step": step})
    with directory.metrics.open("a") as file:
        file.write('{"step": 4, "rewa')
    directory.rollouts.mkdir()
    for step in (1, 2, 3):
        (directory.rollouts / f"{step:06d}.parquet").touch()
    directory.rewind(2)
    directory.release()
    assert [record["step"] for record in directory.records()] == [0, 1, 2]
    assert [failure["step"] for failure in read_lines(directory.failures)] == [0, 1, 2]
    assert sorted(path.stem for path in directory.rollouts.iterdir()) == ["000001", "000002"]
