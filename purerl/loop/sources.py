"""Sources of training rows: groups that the policy has sampled, or examples of the data.

A source is called with the state of the loop and a clock. It takes groups from a window, advances `num_draws`, and
returns the rows and its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from purerl.algos.algebra import Algorithm, keep_all, reads_of, select_rows
from purerl.batch import collate
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.data.examples import DataSet
from purerl.envs.settings import EnvironmentSettings
from purerl.expert_routes import RouteStore
from purerl.loop.metrics import mean_metrics, reward_metrics
from purerl.loop.metrics.distributions import reward_spread
from purerl.loop.state import Clock, LoopState
from purerl.loop.window import Window
from purerl.opening.curriculum import CurriculumSampler
from purerl.opening.draws import Sampler, examples_workflow
from purerl.opening.expert_routes import route_store
from purerl.opening.recorded import RecordedGroups
from purerl.ranks import Ranks
from purerl.rewards.results import components_of
from purerl.rollouts.distributed import distributed
from purerl.rollouts.episode_rows import episodes_of, results_of_episodes
from purerl.rollouts.filtering import NAMED_COMPONENTS, by_metric, first_groups, named_components, number_of_groups
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.sampled import length_penalty, sampling_workflow
from purerl.rollouts.scoring.models import ModelRewards
from purerl.rollouts.settings import Rollout
from purerl.rollouts.types import Group, Trajectory
from purerl.store.directory import RunDirectory
from purerl.store.failures import RunFailures

__all__ = ["ExampleSource", "RolloutSource", "Source", "open_source"]


@frozen
class ExampleSource:
    """Rows of `batch_size` demonstrations or preference pairs, without those that have an image that is damaged."""

    window: Window
    failures: RunFailures
    batch_size: int
    curriculum: CurriculumSampler | None = None
    routes: RouteStore | None = None
    is_repeatable: bool = False

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        self.failures.start(state.step + 1)
        self.failures.expect(self.batch_size)
        groups = self.window.take_groups(self.batch_size, state.step)
        rows = [trajectory for group in groups for trajectory in group.trajectories]
        failed = sum(group.failure is not None for group in groups)
        metrics = {"rollout/failed": float(failed)} if failed else {}
        return evolve(state, num_draws=self.window.num_draws), rows, metrics


@frozen(kw_only=True)
class RolloutSource:
    """Rows of `batch_size` groups that the policy has sampled and that the algorithm selects.

    Groups that are not kept are replaced by new ones, at most `max_resample_rounds` times. With `gen_batch_size` each
    round samples so many; of those that are kept, the first `batch_size` are used. If no completion has a reward, none
    is kept. `model_rewards` scores groups before the algorithm selects; their examples are rows of `data`.
    `components` are the names of the reward functions, each with that of its own component.

    curriculum     what draws prompts by how often they have been solved; None: they are drawn in epochs
    routes         the experts of the rows of groups that wait; None if none are replayed
    is_repeatable  whether draws in flight wait only for rewards when a step ends, so that their order and weights are
                   determined
    """

    window: Window
    failures: RunFailures
    settings: Rollout
    algorithm: Algorithm
    batch_size: int
    data: DataSet
    model_rewards: ModelRewards
    components: Mapping[str, str]
    curriculum: CurriculumSampler | None
    routes: RouteStore | None
    is_repeatable: bool

    def __call__(self, state: LoopState, clock: Clock) -> tuple[LoopState, list[Trajectory], dict[str, float]]:
        groups: list[Group] = []
        kept: list[Trajectory] = []
        self.failures.start(state.step + 1)
        for _ in range(1 + self.settings.max_resample_rounds):
            num_kept = 0 if self.settings.gen_batch_size else number_of_groups(kept)
            count = self.settings.gen_batch_size or self.batch_size - num_kept
            self.failures.expect(count * self.settings.samples_per_prompt)
            with clock("rollout"):
                taken = self.window.take_groups(count, state.step, num_kept=num_kept)
            if self.model_rewards.models:
                with clock("reward"):
                    samples, add_missing = self.settings.samples_per_prompt, self.failures.add_missing
                    taken = self.model_rewards(taken, self.data, samples, add_missing)
            if self.curriculum is not None:
                self.curriculum.observe(taken)
            groups += taken
            kept += self._selected([trajectory for group in taken for trajectory in group.trajectories])
            if number_of_groups(kept) >= self.batch_size:
                break
        kept, num_surplus = first_groups(kept, self.batch_size)
        with clock("rollout"):
            num_cancelled = self.window.cancel_surplus(state.step)
        if all(trajectory.result.reward is None for trajectory in kept):
            kept = []
        sampled = [trajectory for group in groups for trajectory in group.trajectories]
        metrics = self._metrics(groups, sampled, kept)
        if self.settings.num_extra_groups:
            metrics["rollout/cancelled"] = num_cancelled
        if self.settings.gen_batch_size:
            metrics["rollout/surplus"] = num_surplus
        state = evolve(state, num_draws=self.window.num_draws, in_flight=tuple(self.window.in_flight))
        if self.curriculum is not None:
            waiting = [*self.window.in_flight, *(group.draw for group in self.window.waiting)]
            metrics |= self.curriculum.end_step(kept, waiting)
            state = evolve(state, curriculum=self.curriculum.state)
        return state, self._with_optional_fields(kept), metrics

    def _metrics(
        self, groups: Sequence[Group], sampled: Sequence[Trajectory], kept: Sequence[Trajectory]
    ) -> dict[str, float]:
        lengths = [sum(trajectory.fields["action"]) for trajectory in sampled]
        metrics: dict[str, float] = {"rollout/sampled": len(sampled), "rollout/tokens": sum(lengths)}
        metrics["rollout/failed"] = sum(group.failure is not None for group in groups)
        if not sampled:
            return metrics
        metrics |= {"rollout/kept_fraction": len(kept) / len(sampled)}
        results = results_of_episodes(sampled)
        labels = [rows[0].fields["group"] for rows in episodes_of(sampled)]
        metrics |= reward_metrics(results) | reward_spread([result.reward for result in results], labels)
        metrics |= mean_metrics([trajectory.metrics for trajectory in sampled])
        if self.settings.overlong:
            penalty = length_penalty(self.settings.overlong, self.settings.max_tokens)
            metrics["reward/overlong"] = sum(map(penalty, lengths)) / len(lengths)
        return metrics

    def _selected(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        if self.algorithm.select is keep_all or not trajectories:
            return [*trajectories]
        metric = self.settings.filter_metric
        rows = [trajectory.fields for trajectory in trajectories] if metric is None else by_metric(trajectories, metric)
        keep = select_rows(self.algorithm, collate(rows)).tolist()
        return [trajectory for trajectory, is_kept in zip(trajectories, keep, strict=True) if is_kept]

    def _with_optional_fields(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`trajectories` with the fields that only some algorithms read, if this one does."""
        reads, results = reads_of(self.algorithm), [trajectory.result for trajectory in trajectories]
        columns: dict[str, list[Any]] = {"score": _scores(trajectories)} if "score" in reads else {}
        columns |= {name: named_components(trajectories, name) for name in NAMED_COMPONENTS if name in reads}
        columns |= {"components": components_of(results, self.components)} if "components" in reads else {}
        if not columns:
            return [*trajectories]
        added = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [evolve(t, fields={**t.fields, **new}) for t, new in zip(trajectories, added, strict=True)]


def _scores(trajectories: Sequence[Trajectory]) -> list[float]:
    """The reward of the episode of each row."""
    results = zip(episodes_of(trajectories), results_of_episodes(trajectories), strict=True)
    scores = {row.fields["row"]: result.reward or 0.0 for rows, result in results for row in rows}
    return [scores[trajectory.fields["row"]] for trajectory in trajectories]


Source = ExampleSource | RolloutSource


def open_source(
    config: RunConfig, needs: Requirements, task: Task, engines: Engines, directory: RunDirectory, ranks: Ranks
) -> Source:
    """The source of the rows of each step: completions of the policy, or examples."""
    rollout, data, size = config.rollout, task.training.examples, config.batch_size
    sampler = Sampler(data, task.chat, config.seed, needs.teachers, needs.number_columns)
    if rollout is None:
        failures = RunFailures(directory, 1, 1.0)  # of images; all others are learned from
        rollouts = Rollouts(engines.runtime, examples_workflow(needs, sampler))
        window = Window(rollouts, sampler.draw_examples, batch_size=size, on_group=failures.add)
        return ExampleSource(window, failures, size)
    if rollout.recorded is not None:
        workflow = RecordedGroups(Path(rollout.recorded), config.seed)
        draw, curriculum = workflow.draw, None
    else:
        curriculum = config.data.curriculum and CurriculumSampler(sampler, config.data.curriculum, size)
        drawer = curriculum or sampler
        has_baseline, draw = "greedy_score" in reads_of(needs.algorithm), drawer.draw
        workflow = sampling_workflow(rollout, task, engines, drawer.row_fields, has_baseline=has_baseline)
    routes = route_store(config.trainer, directory)
    failures = RunFailures(directory, rollout.samples_per_prompt, config.reward_workers.max_failure_rate)
    window = Window(
        distributed(Rollouts(engines.runtime, workflow, routes), ranks),
        draw,
        batch_size=rollout.gen_batch_size or size,
        max_staleness=rollout.max_staleness,
        order=rollout.order,
        num_extra=rollout.num_extra_groups,
        on_group=failures.add,
    )
    return RolloutSource(
        window=window,
        failures=failures,
        settings=rollout,
        algorithm=needs.algorithm,
        batch_size=size,
        data=data,
        model_rewards=engines.scorers,
        components=task.rewards.components,
        curriculum=curriculum,
        routes=routes,
        is_repeatable=_is_repeatable(rollout, config.environment, engines.runtime),
    )


def _is_repeatable(rollout: Rollout, environment: EnvironmentSettings | None, runtime: Runtime) -> bool:
    """Whether the engine works inside of the steps of a run, and nothing else takes time while it samples."""
    is_in_event_loop = environment is None or environment.is_in_event_loop
    if runtime.engine is None or rollout.order != "drawn" or not is_in_event_loop:
        return False
    capabilities = runtime.engine.generator.capabilities
    return runtime.is_in_step and capabilities.seeded and capabilities.batch_invariant
