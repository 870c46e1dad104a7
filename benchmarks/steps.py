"""The steps of a run, for benchmarks that time them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import define

from purerl.config.paths import resolve_paths
from purerl.config.requirements import schedule_of
from purerl.config.schema import RunConfig
from purerl.loop.callbacks import NO_CALLBACKS, open_calls
from purerl.loop.callbacks.prompt_sampler import open_prompt_sampler
from purerl.loop.record import StepLog
from purerl.loop.remaining_steps import advance
from purerl.loop.resume import Checkpoints
from purerl.loop.run import Run, open_run
from purerl.loop.state import Ending, LoopState
from purerl.loop.step_end import StepEnd
from purerl.loop.train import claim_directory
from purerl.monitoring.trackers.trackers import Trackers
from purerl.monitoring.warnings.run import Monitor
from purerl.opening.inputs import prepare
from purerl.placement.join import SINGLE_PROCESS
from purerl.ranks import ONE_RANK
from purerl.rewards.adapters import RewardFunction
from purerl.store.background import CheckpointWriter
from purerl.system.garbage import gc_frozen


@define
class Steps:
    """A run, its state, and what records its steps: everything of `purerl.train` but the console."""

    run: Run
    state: LoopState
    log: StepLog
    checkpoints: Checkpoints
    end: StepEnd

    def step(self) -> dict[str, Any]:
        """Do one step, and return its record."""
        self.state, record = advance(self.run, self.state, self.log, self.checkpoints, self.end)
        return record


@contextmanager
def opened_steps(config: RunConfig, path: Path, functions: Mapping[str, RewardFunction]) -> Iterator[Steps]:
    """A new run in the directory `path`. An existing one is replaced."""
    directory = claim_directory(path, config, fresh=True)
    prepare(config.prepare_data, config.seed, directory.path)
    with ExitStack() as stack:
        stack.callback(directory.release)
        run = open_run(resolve_paths(config, directory.path), directory, functions, SINGLE_PROCESS, stack)
        state = LoopState(transform=run.learner.algorithm.advantage.init())
        directory.log({"step": 0})
        ending = Ending(schedule_of(config).num_steps(run.task.training.examples.num_rows), config.stop_when)
        sampler = open_prompt_sampler(run.task, run.engines, evaluate=None, rollout=config.rollout, seed=config.seed)
        end = StepEnd(run.measures, open_calls(NO_CALLBACKS, sampler, run, directory), ending, ONE_RANK)
        with run.task.rewards, gc_frozen():
            run.task.rewards.start(run.engines.runtime.run_here)
            log = StepLog(directory, Trackers(), Monitor.of_run(directory.path, []), run.learner.algorithm)
            with CheckpointWriter(ONE_RANK, background=config.checkpoint.background) as writer:
                yield Steps(run, state, log, Checkpoints(run, directory, config.checkpoint, writer, ONE_RANK), end)
