"""Opening the workflows of a run, and the source of its rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from attrs import evolve

from purerl.algos.algebra import Algorithm, reads_of
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.envs.settings import EnvironmentSettings
from purerl.loop.draws import Sampler
from purerl.loop.sources import ExampleSource, RolloutSource, Source, length_penalty
from purerl.loop.window import Window
from purerl.opening.expert_routes import route_store
from purerl.opening.recorded import RecordedGroups
from purerl.protocols import Sampling
from purerl.ranks import Ranks
from purerl.rollouts.baseline import WithGreedyBaseline
from purerl.rollouts.distributed import distributed
from purerl.rollouts.examples import Demonstrations, LabeledCompletions, Preferences
from purerl.rollouts.interaction import open_workflow, with_limit
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.settings import Rollout
from purerl.rollouts.types import Workflow
from purerl.store.directory import RunDirectory
from purerl.store.failures import RunFailures

__all__ = ["examples_workflow", "open_source"]


def open_source(
    config: RunConfig, needs: Requirements, task: Task, engines: Engines, directory: RunDirectory, ranks: Ranks
) -> Source:
    """The source of the rows of each step: completions of the policy, or examples."""
    examples, algorithm, rollout = task.training.examples, needs.algorithm, config.rollout
    sampler = Sampler(examples, task.chat, config.seed, needs.teachers, needs.number_columns)
    if rollout is None:
        failures = RunFailures(directory, 1, 1.0)  # of images; all others are learned from
        rollouts = Rollouts(engines.runtime, examples_workflow(needs, sampler))
        window = Window(rollouts, sampler.draw_examples, batch_size=config.batch_size, on_group=failures.add)
        return ExampleSource(window, failures, config.batch_size)
    if rollout.recorded is not None:
        workflow = RecordedGroups(Path(rollout.recorded), config.seed)
        draw = workflow.draw
    else:
        capabilities = engines.capabilities()
        interaction = with_limit(task.interaction, *capabilities.trained, *capabilities.sampling)
        limited = evolve(task, interaction=interaction)
        workflow, draw = _sampling_workflow(rollout, algorithm, limited, sampler), sampler.draw
    failures = RunFailures(directory, rollout.samples_per_prompt, config.reward_workers.max_failure_rate)
    routes = route_store(config, directory)
    window = Window(
        distributed(Rollouts(engines.runtime, workflow, routes), ranks),
        draw,
        batch_size=config.batch_size,
        max_staleness=rollout.max_staleness,
        order=rollout.order,
        num_extra=rollout.num_extra_groups,
        on_group=failures.add,
    )
    return RolloutSource(
        window=window,
        failures=failures,
        settings=rollout,
        algorithm=algorithm,
        batch_size=config.batch_size,
        data=examples,
        model_rewards=engines.scorers,
        components=task.rewards.components,
        routes=routes,
        is_repeatable=_is_repeatable(rollout, config.environment, engines),
    )


def _is_repeatable(rollout: Rollout, environment: EnvironmentSettings | None, engines: Engines) -> bool:
    """Whether draws in flight wait only for rewards when a step ends, so that their order and weights are determined.

    This is the case if the engine works inside of the steps of a run, and nothing else takes time while it samples.
    """
    if engines.generator is None or rollout.order != "drawn":
        return False
    if environment is not None and not environment.is_in_event_loop:
        return False
    capabilities = engines.generator.capabilities
    return engines.runtime.is_in_step and capabilities.seeded and capabilities.batch_invariant


def _sampling_workflow(rollout: Rollout, algorithm: Algorithm, task: Task, sampler: Sampler) -> Workflow:
    """Samples the rows of a draw, and scores them."""
    build = partial(
        open_workflow,
        task.interaction,
        task.chat,
        sampler.data.example_format,
        rewards=task.rewards,
        row_fields=sampler.row_fields,
    )
    sampling = Sampling(rollout.temperature, rollout.max_tokens, task.chat.stop_tokens, rollout.stop_strings)
    workflow = build(sampling=sampling, samples=rollout.samples_per_prompt)
    if "greedy_score" not in reads_of(algorithm):
        return workflow
    greedy = build(sampling=evolve(sampling, temperature=0.0), samples=1)
    return WithGreedyBaseline(workflow, greedy, length_penalty(rollout.overlong, rollout.max_tokens))


def examples_workflow(needs: Requirements, sampler: Sampler) -> Demonstrations | Preferences | LabeledCompletions:
    """The workflow of an algorithm that learns from `sampler`'s data."""
    images = RowImages(sampler.chat)
    if needs.example_type == "demonstrations":
        return Demonstrations(sampler.answers, sampler.row_fields, images)
    if needs.example_type == "labels":
        return LabeledCompletions(sampler.answers, sampler.mismatched_answer, sampler.labeled_fields, images)
    answers = sampler.scored_answers if needs.trains_classifier else sampler.answers
    return Preferences(answers, sampler.row_fields, images)
