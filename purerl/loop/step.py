"""One step of a run, for every algorithm and every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from attrs import evolve, field, frozen

from purerl.algos.algebra import Algorithm, Objective, compute_advantages, reads_of
from purerl.batch import FIELDS, collate, empty_batch, with_fields
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.loop.metrics import batch_metrics, means
from purerl.loop.metrics.gradients import check_trainers, gradient_metrics
from purerl.loop.metrics.mismatch import check_staleness, staleness_metrics
from purerl.loop.metrics.throughput import Throughput
from purerl.loop.state import Clock, LoopState
from purerl.loop.update import Schedule, loop_objectives, score, scored_fields, update
from purerl.protocols import Trainer
from purerl.rollouts.types import Trajectory
from purerl.seeds import derive_seed
from purerl.types import TensorDict

__all__ = ["Follower", "Learner", "Rows", "Step", "open_learner", "with_noise"]

Rows = Callable[[LoopState, Clock], tuple[LoopState, list[Trajectory], dict[str, float]]]
"""The rows of the step after a state, with the next state of the data and metrics: see `purerl.loop.sources`."""


@frozen
class Step:
    """The result of a step. Without kept rows `batch` is None and no model has changed.

    `batch` has the fields that the computation of advantages read, with their values before it, and those it added.
    """

    state: LoopState
    batch: TensorDict | None
    trajectories: Sequence[Trajectory]
    metrics: Mapping[str, float]


class Follower(NamedTuple):
    """A model that follows the policy: every `every` steps its weights become (1 - mix) * own + mix * policy."""

    every: int
    mix: float


@frozen
class Learner:
    """An algorithm and the models that it trains and reads.

    objectives      those of the algorithm as the loop uses them
    gradient_steps  the steps whose gradients are measured
    max_staleness   greatest age of sampled tokens, in updates; None: any
    followers       the models that follow the policy, by role
    """

    algorithm: Algorithm
    objectives: tuple[Objective, ...]
    trainers: Mapping[str, Trainer]
    schedule: Schedule
    gradient_steps: tuple[int, ...] = ()
    max_staleness: int | None = None
    followers: Mapping[str, Follower] = field(factory=dict)

    @property
    def throughput(self) -> Throughput:
        """The work of the trainers in a step, apart from the number of rows."""
        roles = dict.fromkeys(o.role for o in (*self.algorithm.before, *self.objectives))
        scores = bool(scored_fields(self.objectives, self.algorithm.reads))
        passes = tuple(self.schedule.steps.passes(role).ppo_epochs for role in roles)
        return Throughput(tuple(self.trainers[role] for role in roles), passes, scores)

    def step(self, state: LoopState, source: Rows, clock: Clock) -> Step:
        """Take rows, score them, compute advantages, and update the models.

        If the algorithm keeps no row, optimizer steps without rows still advance the learning-rate schedules.
        """
        algorithm, schedule = self.algorithm, self.schedule
        before, objectives = (schedule.active(phase, state.step) for phase in (algorithm.before, self.objectives))
        state, trajectories, metrics = source(state, clock)
        if not trajectories:
            for phase in (before, objectives):
                update(self.trainers, empty_batch(), phase, schedule, state.step)
            return Step(evolve(state, step=state.step + 1), None, trajectories, metrics)
        batch = self.collated(trajectories, state)
        check_staleness(batch, state.step, self.max_staleness)
        with clock("update"):
            batch = score(self.trainers, batch, scored_fields(before))
            reports = update(self.trainers, batch, before, schedule, state.step)
        with clock("score"):
            trained, names = {objective.role for objective in before}, scored_fields(objectives, algorithm.reads)
            names = [name for name in names if name not in batch.keys() or FIELDS[name].source[0] in trained]
            batch = score(self.trainers, batch, names)
        with clock("advantage"):
            transform, computed = compute_advantages(algorithm, state.transform, batch)
        metrics = {**metrics, **self._gradients(computed, objectives, state, clock)}
        with clock("update"):
            reports |= update(self.trainers, computed, objectives, schedule, state.step)
        metrics = {**metrics, **means(reports), **batch_metrics(computed), **staleness_metrics(computed, state.step)}
        whole = with_fields(computed, **dict(batch.items())).exclude("routes")  # their records are not stored
        return Step(evolve(state, step=state.step + 1, transform=transform), whole, trajectories, metrics)

    def _gradients(
        self, batch: TensorDict, objectives: Sequence[Objective], state: LoopState, clock: Clock
    ) -> dict[str, float]:
        """The metrics of the gradients of the step after `state`, if they are requested."""
        if state.step + 1 not in self.gradient_steps:
            return {}
        with clock("gradients"):
            return gradient_metrics(self.trainers, batch, objectives)

    def update_followers(self, step: int, clock: Clock) -> None:
        """Move the models that follow the policy, and are due after `step`, to its weights."""
        for name, follower in self.followers.items():
            if step % follower.every == 0:
                with clock("sync"):
                    self.trainers[name].load_weights(self.trainers["policy"].weights(), mix=follower.mix)

    def collated(self, trajectories: Sequence[Trajectory], state: LoopState) -> TensorDict:
        """The rows of the step after `state` as a batch, before a model has scored it."""
        batch = collate([trajectory.fields for trajectory in trajectories])
        return with_noise(batch, self.schedule.seed, state.step) if "noise" in reads_of(self.algorithm) else batch


def with_noise(batch: TensorDict, seed: int, step: int) -> TensorDict:
    """`batch`, the rows of the step after `step`, with the random numbers of a run with this `seed`."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "noise", step))
    return with_fields(batch, noise=torch.rand(batch["tokens"].shape, generator=draw))


def open_learner(config: RunConfig, needs: Requirements, trainers: Mapping[str, Trainer]) -> Learner:
    """The algorithm with its `trainers`. Raises: ConfigError for one without gradients, if they are to be measured."""
    rollout, algorithm = config.rollout, needs.algorithm
    schedule = Schedule(needs.schedule, config.seed)
    objectives = loop_objectives(algorithm, needs.schedule, is_sampling=rollout is not None)
    if config.debug.gradient_steps:
        check_trainers(trainers, objectives)
    max_staleness = rollout.max_staleness if rollout is not None and rollout.recorded is None else None
    roles = ((name, role.settings) for name, role in needs.models.items())
    followers = {name: Follower(role.update_every, role.update_mix) for name, role in roles if role.update_every}
    steps = config.debug.gradient_steps
    return Learner(algorithm, objectives, trainers, schedule, steps, max_staleness, followers=followers)
