"""processes.jsonl: a line for each process that worked on a run, with what is needed to repeat the run."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from purerl.loop.train import train
from purerl.store.processes import read_processes
from purerl.store.settings import Checkpoint
from purerl.system.provenance import versions

from .rewards import first_is_even
from .runs import train_until
from .small import fake


def test_each_process_that_works_on_a_run_is_recorded(tmp_path: Path) -> None:
    config = fake(max_steps=3, checkpoint=Checkpoint(every=1))
    train_until(2, config, rewards=[first_is_even], directory=tmp_path / "run")
    train(config, rewards=[first_is_even], directory=tmp_path / "run")
    processes = read_processes(tmp_path / "run")
    assert [each["step"] for each in processes] == [0, 2]
    assert all(each["versions"] == versions() for each in processes)
    assert all(each["ranks"] == 1 and each["cpu_seconds"] > 0 for each in processes)
    assert datetime.fromisoformat(processes[0]["started"]).tzinfo is not None


def test_a_finished_run_that_is_asked_for_again_has_no_other_process(tmp_path: Path) -> None:
    config = fake(max_steps=1)
    for _ in range(2):
        train(config, rewards=[first_is_even], directory=tmp_path / "run")
    assert len(read_processes(tmp_path / "run")) == 1
    train(config, rewards=[first_is_even], directory=tmp_path / "run", fresh=True)
    assert len(read_processes(tmp_path / "run")) == 1
