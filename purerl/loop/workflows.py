"""The workflows of a run, and the source of its rows, as its configuration describes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from attrs import evolve

from purerl.algos.algebra import Algorithm, reads_of
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.data.open import RunData
from purerl.loop.draws import Sampler
from purerl.loop.failures import RunFailures
from purerl.loop.model_rewards import ModelRewards
from purerl.loop.sources import ExampleSource, RolloutSource, Source, length_penalty
from purerl.loop.window import Window
from purerl.opening.expert_routes import route_store
from purerl.opening.recorded import RecordedGroups
from purerl.protocols import Sampling
from purerl.ranks import Ranks
from purerl.rewards.runner import RewardRunner
from purerl.rollouts.baseline import WithGreedyBaseline
from purerl.rollouts.distributed import distributed
from purerl.rollouts.examples import Demonstrations, LabeledCompletions, Preferences
from purerl.rollouts.interaction import Interaction, open_workflow
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.row_images import RowImages
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import Rollout
from purerl.rollouts.types import Workflow
from purerl.store.directory import RunDirectory

__all__ = ["examples_workflow", "open_source"]


def open_source(
    config: RunConfig,
    needs: Requirements,
    data: RunData,
    runtime: Runtime,
    interaction: Interaction,
    runner: RewardRunner,
    directory: RunDirectory,
    ranks: Ranks,
    model_rewards: ModelRewards,
) -> Source:
    """What makes the rows of each step: completions of the policy, or examples."""
    sampler = Sampler(data.examples, data.chat, config.seed, needs.teachers, needs.number_columns)
    rollout, size, max_rate = config.rollout, config.batch_size, config.reward_workers.max_failure_rate
    if rollout is None:
        failures = RunFailures(directory, 1, 1.0)  # of images; all others are learned from
        rollouts = Rollouts(runtime, examples_workflow(needs, sampler))
        window = Window(rollouts, sampler.draw_examples, batch_size=size, on_group=failures.add)
        return ExampleSource(window, failures, size)
    if rollout.recorded is not None:
        workflow = RecordedGroups(Path(rollout.recorded), config.seed)
        draw = workflow.draw
    else:
        workflow, draw = _sampling_workflow(rollout, needs.algorithm, data, interaction, runner, sampler), sampler.draw
    failures = RunFailures(directory, rollout.samples_per_prompt, max_rate)
    window = Window(
        distributed(Rollouts(runtime, workflow, route_store(config, directory)), ranks),
        draw,
        batch_size=size,
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
        data=data.examples,
        model_rewards=model_rewards,
        components=runner.components,
    )


def _sampling_workflow(
    rollout: Rollout,
    algorithm: Algorithm,
    data: RunData,
    interaction: Interaction,
    runner: RewardRunner,
    sampler: Sampler,
) -> Workflow:
    """What samples the rows of a draw, and scores them."""
    build = partial(
        open_workflow,
        interaction,
        data.chat,
        data.examples.example_format,
        rewards=runner,
        row_fields=sampler.row_fields,
    )
    sampling = Sampling(rollout.temperature, rollout.max_tokens, data.chat.stop_tokens, rollout.stop_strings)
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
