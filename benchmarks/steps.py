"""The steps of a run, for benchmarks that time them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define

from purerl.config.schema import RunConfig
from purerl.loop.paths import resolve_paths
from purerl.loop.record import StepLog
from purerl.loop.remaining_steps import advance
from purerl.loop.run import Run, open_run, prepare
from purerl.loop.state import LoopState
from purerl.loop.train import claim_directory
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.run import Monitor
from purerl.ranks import ONE_RANK
from purerl.rewards.adapters import RewardFunction
from purerl.store.background import CheckpointWriter
from purerl.system.process import gc_frozen


@define
class Steps:
    """A run, its state, and what records its steps: everything of `purerl.train` but the console."""

    run: Run
    state: LoopState
    log: StepLog
    writer: CheckpointWriter

    def step(self) -> dict[str, Any]:
        """Do one step, and return its record."""
        self.state, record = advance(self.run, self.state, self.log, self.writer)
        return record


@contextmanager
def opened_steps(config: RunConfig, path: Path, functions: Mapping[str, RewardFunction]) -> Iterator[Steps]:
    """A new run in the directory `path`. An existing one is replaced."""
    directory = claim_directory(path, config, fresh=True)
    prepare(config, directory.path)
    run = open_run(resolve_paths(config, directory.path), directory, functions)
    state = LoopState(transform=run.learner.algorithm.advantage.init())
    directory.log({"step": 0})
    try:
        with run.rewards, gc_frozen():
            run.rewards.start(run.runtime.run_here)
            log = StepLog(directory, Trackers(), Monitor.of_run(directory.path, []), run.learner.algorithm)
            with CheckpointWriter(ONE_RANK, background=run.config.checkpoint.background) as writer:
                yield Steps(run, state, log, writer)
    finally:
        run.close()
        directory.release()
