"""The workflows of a run, and the source of its rows, as its configuration describes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from attrs import evolve

from purerl.algos.algebra import Algorithm, reads_of
from purerl.config.roles import teacher_names, trains_classifier
from purerl.config.schema import RunConfig
from purerl.data.columns import ExampleType
from purerl.data.open import NUMBER_COLUMNS, RunData
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

__all__ = ["examples_workflow", "number_columns", "open_source", "purpose_of"]


def purpose_of(config: RunConfig, algorithm: Algorithm) -> ExampleType:
    """What the training data are used for."""
    if config.rollout is not None:
        return "prompts"
    reads = {name for objective in algorithm.objectives for name in objective.reads}
    return "preferences" if "chosen" in reads else "labels" if "desirable" in reads else "demonstrations"


def number_columns(algorithm: Algorithm) -> tuple[str, ...]:
    """The columns of numbers of the data that are fields of the rows, because `algorithm` reads them."""
    return tuple(name for name in NUMBER_COLUMNS if name in reads_of(algorithm))


def open_source(
    config: RunConfig,
    algorithm: Algorithm,
    data: RunData,
    runtime: Runtime,
    interaction: Interaction,
    runner: RewardRunner,
    directory: RunDirectory,
    ranks: Ranks,
    model_rewards: ModelRewards,
) -> Source:
    """What makes the rows of each step: completions of the policy, or examples."""
    sampler = Sampler(data.examples, data.chat, config.seed, teacher_names(config), number_columns(algorithm))
    rollout, size, max_rate = config.rollout, config.batch_size, config.reward_workers.max_failure_rate
    if rollout is None:
        failures = RunFailures(directory, 1, 1.0)  # of images; all others are learned from
        rollouts = Rollouts(runtime, examples_workflow(config, algorithm, sampler))
        window = Window(rollouts, sampler.draw_examples, batch_size=size, on_group=failures.add)
        return ExampleSource(window, failures, size)
    if rollout.recorded is not None:
        workflow = RecordedGroups(Path(rollout.recorded), config.seed)
        draw = workflow.draw
    else:
        workflow, draw = _sampling_workflow(rollout, algorithm, data, interaction, runner, sampler), sampler.draw
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
        algorithm=algorithm,
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


def examples_workflow(
    config: RunConfig, algorithm: Algorithm, sampler: Sampler
) -> Demonstrations | Preferences | LabeledCompletions:
    """The workflow of an algorithm that learns from `sampler`'s data."""
    images, purpose = RowImages(sampler.chat), purpose_of(config, algorithm)
    if purpose == "demonstrations":
        return Demonstrations(sampler.answers, sampler.row_fields, images)
    if purpose == "labels":
        return LabeledCompletions(sampler.answers, sampler.mismatched_answer, sampler.labeled_fields, images)
    answers = sampler.scored_answers if trains_classifier(algorithm) else sampler.answers
    return Preferences(answers, sampler.row_fields, images)
