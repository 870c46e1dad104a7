"""The run directory: who may work in it, what it refuses, and what it forgets."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from purerl.config.schema import Checkpoint, RewardWorkers, RunConfig
from purerl.config.structure import read_toml
from purerl.errors import RunDirectoryError
from purerl.recipes.addition import addition
from purerl.store.directory import claim
from purerl.tracking import tensorboard, wandb


def test_the_same_configuration_may_come_back(tmp_path: Path) -> None:
    claim(tmp_path / "run", addition(), fresh=False).release()
    claim(tmp_path / "run", addition(), fresh=False).release()


def test_another_configuration_is_refused_by_its_keys(tmp_path: Path) -> None:
    config = addition()
    claim(tmp_path, config, fresh=False).release()
    (tmp_path / "metrics.jsonl").touch()
    other = evolve(config, seed=7, trainer=evolve(config.trainer, lr=0.5))
    with pytest.raises(RunDirectoryError) as caught:
        claim(tmp_path, other, fresh=False)
    assert "seed: 0 there, 7 now" in str(caught.value)
    assert f"trainer.lr: {config.trainer.lr} there, 0.5 now" in str(caught.value)
    assert "--fresh" in str(caught.value)
    claim(tmp_path, other, fresh=True).release()


def test_a_run_that_had_not_begun_gives_way(tmp_path: Path) -> None:
    claim(tmp_path, addition(), fresh=False).release()
    other = evolve(addition(), seed=7)
    claim(tmp_path, other, fresh=False).release()
    assert read_toml(tmp_path / "config.toml", RunConfig) == other


def test_what_a_run_is_told_to_may_change_and_nothing_else(tmp_path: Path) -> None:
    config = addition()
    claim(tmp_path, config, fresh=False).release()
    (tmp_path / "metrics.jsonl").touch()
    told = evolve(
        config, trackers=(tensorboard.Config(),), initial_run=evolve(config.initial_run, trackers=(wandb.Config(),))
    )
    for one in (told, evolve(told, trackers=(tensorboard.Config(directory="logs"),)), config):
        claim(tmp_path, one, fresh=False).release()
        assert read_toml(tmp_path / "config.toml", RunConfig) == one
    changed = {
        "name": "b",
        "num_threads": 2,
        "checkpoint": Checkpoint(every=7),
        "reward_workers": RewardWorkers(timeout=1.0),
    }
    for name, value in changed.items():
        with pytest.raises(
            RunDirectoryError, match=f"(?s)got:  {name}.*need: the same settings; only trackers may differ"
        ):
            claim(tmp_path, evolve(told, **{name: value}), fresh=False)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    held = claim(tmp_path, addition(), fresh=False)
    with pytest.raises(RunDirectoryError, match="another process"):
        claim(tmp_path, addition(), fresh=False)
    held.release()
    claim(tmp_path, addition(), fresh=False).release()


@pytest.mark.parametrize("fresh", [False, True])
def test_what_is_not_a_run_is_left_alone(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match="other files: thesis.tex"):
        claim(tmp_path, addition(), fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_config_of_something_else_makes_no_run(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "config.toml").write_text('baseURL = "https://example.org"\n')
    (tmp_path / "content").mkdir()
    with pytest.raises(RunDirectoryError, match="other files: config.toml, content"):
        claim(tmp_path, addition(), fresh=fresh)
    assert (tmp_path / "content").is_dir()


def test_only_what_a_run_made_is_thrown_away(tmp_path: Path) -> None:
    claim(tmp_path / "run", addition(), fresh=False).release()
    for name in ("checkpoints", "src"):
        (tmp_path / "run" / name).mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "run" / "rollouts").symlink_to(tmp_path / "elsewhere")
    claim(tmp_path / "run", evolve(addition(), seed=9), fresh=True).release()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.toml", "lock", "src"]
    assert (tmp_path / "elsewhere" / "file").exists()


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirectoryError, match="a file"):
        claim(tmp_path / "run", addition(), fresh=False)


def test_a_run_that_died_as_it_began_can_be_claimed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "config.toml.partial").write_text("name = ")
    claim(tmp_path, addition(), fresh=False).release()


def test_rewind_forgets_what_came_after_and_half_a_line(tmp_path: Path) -> None:
    directory = claim(tmp_path, addition(), fresh=False)
    for step in range(4):
        directory.log({"step": step, "reward/mean": 0.1 * step})
    with directory.metrics.open("a") as file:
        file.write('{"step": 4, "rewa')
    directory.rollouts.mkdir()
    for step in (1, 2, 3):
        (directory.rollouts / f"{step:06d}.parquet").touch()
    directory.rewind(2)
    assert [record["step"] for record in directory.records()] == [0, 1, 2]
    assert sorted(path.stem for path in directory.rollouts.iterdir()) == ["000001", "000002"]
