"""A run with everything open: its task, its engines, and what a step does with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from attrs import evolve, frozen

from purerl.backends.mismatch_growth import mismatch_limit
from purerl.config.check import accuracy_rewards_of, learns_from_rewards
from purerl.config.generators import copy_reason, is_narrow, sampled_model
from purerl.config.preset_names import preset_of
from purerl.config.requirements import Requirements, requirements_of
from purerl.config.schema import RunConfig
from purerl.data.open import file_digests
from purerl.evaluation.accuracy import describe_accuracy
from purerl.loop.measure import Measures, open_measures
from purerl.loop.sources import RolloutSource, Source, open_source
from purerl.loop.state import Clock
from purerl.loop.step import Learner, open_learner
from purerl.models.processor import copy_processor
from purerl.opening.base_models import identify_models, pin_commits
from purerl.opening.draws import all_rows
from purerl.opening.engines import check_running, open_engines
from purerl.opening.expert_routes import use_routes
from purerl.opening.fit import check_fit, lengths_of
from purerl.opening.inputs import data_files
from purerl.opening.precomputed import open_precomputed
from purerl.opening.task import open_task, with_interaction
from purerl.placement.join import RankContext
from purerl.planning.check import check_memory
from purerl.rewards.adapters import RewardFunction, RunLength
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.runtime import Runtime
from purerl.settings import Model
from purerl.store.directory import RunDirectory
from purerl.system.files import atomic_directory

__all__ = ["Run", "open_run"]


@frozen
class Run:
    """The open parts of a run.

    learner   the algorithm, and the models that it trains and reads
    source    makes the rows of each step
    measures  the evaluation and the validation of the policy
    """

    task: Task
    engines: Engines
    learner: Learner
    source: Source
    measures: Measures

    @contextmanager
    def time_generation(self, clock: Clock) -> Iterator[None]:
        """Add the time in which the generator had something to do during the block to the phase "generate"."""
        engine = self.engines.runtime.engine
        before = engine.busy_seconds if engine else 0.0
        yield
        if engine is not None and isinstance(self.source, RolloutSource):
            clock.add("generate", engine.busy_seconds - before)


def open_run(
    config: RunConfig,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    context: RankContext,
    stack: ExitStack,
) -> Run:
    """Open everything that `config` names, and register it on `stack`. Collective.

    `config` has resolved paths. `functions` are reward functions that were passed as objects, by name.
    """
    rollout, ranks = config.rollout, context.ranks
    runtime = Runtime(**({"stall_timeout": rollout.stall_timeout} if rollout else {}))
    stack.callback(runtime.close)
    context.on_problem(runtime.fail)
    models = requirements_of(config).all_models()
    fingerprints = identify_models(models, directory)
    config = pin_commits(config, models, fingerprints)
    needs, files = requirements_of(config), file_digests(data_files(config, directory.path))
    directory.check_data(files)
    task = open_task(config, needs, functions=functions, share=context.share).with_images(directory.images)
    num_examples = task.training.examples.num_rows
    steps = needs.schedule.num_steps(num_examples)
    task.rewards.length = RunLength(steps, num_examples / config.batch_size)
    updates = needs.updates(steps)
    task = with_interaction(task, config.environment, rollout and rollout.workflow, runtime, seed=config.seed)
    ranks.on_first(lambda: _check_resources(config, needs, task, context), "memory and servers")
    rows = partial(all_rows, needs, task, config.seed)
    stored = open_precomputed(config, needs, task, directory, context=context, fingerprints=fingerprints, rows=rows)
    options = {"background": rollout.background, "temperature": rollout.temperature} if rollout else {}
    placed = {"trainer": config.trainer, "rollout": rollout, "placement": config.placement, "ranks": ranks.size}
    reason = copy_reason(config.generator, model=config.model, **placed)
    engines = open_engines(
        {name: role for name, role in needs.models.items() if name not in stored},
        task,
        runtime,
        stack,
        generator=_sampler_of(config),
        shares_weights=reason is None,
        judges=needs.judges,
        rewards=config.rewards,
        gates=config.gates,
        updates=updates,
        seed=config.seed,
        context=context,
        **options,
    )
    engines = evolve(engines, trainers={**engines.trainers, **stored})
    use_routes(config.trainer, directory, engines.trainers["policy"])
    learner = open_learner(config, needs, engines.trainers)
    check_fit(task, engines.capabilities(), **lengths_of(config, steps))
    source = open_source(config, needs, task, engines, directory, ranks)
    measures = open_measures(config, needs, task, engines, learner, directory, ranks=ranks)
    run = Run(task, engines, learner, source, measures)
    facts = partial(_write_facts, config, run, directory, max_steps=steps, files=files, models=fingerprints)
    ranks.on_first(facts, "the facts of the run")
    return run


def _sampler_of(config: RunConfig) -> tuple[Any, Model] | None:
    """The Config of the generator of `config`, if it has one, and the model that it samples."""
    return config.generator and (config.generator, sampled_model(config.model, config.trainer))


def _check_resources(config: RunConfig, needs: Requirements, task: Task, context: RankContext) -> None:
    """Raise ConfigError if there is too little memory or a judge is not served, and EngineError for other servers."""
    task.rewards.check_running()
    check_memory(config, needs, context.ranks.size, ranks_of_host=context.local_size)
    check_running(_sampler_of(config), needs.judges)


def _write_facts(
    config: RunConfig,
    run: Run,
    directory: RunDirectory,
    *,
    max_steps: int,
    files: Mapping[str, str],
    models: Mapping[str, Mapping[str, Any]],
) -> str:
    """Write data.json, and the tokenizer; return the identity, which is refused, if damaged, here."""
    facts = {
        "max_steps": max_steps,
        "preset": preset_of(config.algorithm),
        "learns_from_rewards": learns_from_rewards(run.learner.algorithm),
        "accuracy": describe_accuracy(accuracy_rewards_of(config)),
        "mismatch_level": run.engines.mismatch_level,
        "mismatch_limit": _mismatch_limit(config, run.engines),
    }
    directory.write_data({**facts, **run.task.training.counts}, files, models)
    if not directory.tokenizer.exists():
        with atomic_directory(directory.tokenizer) as folder:
            run.task.chat.tokenizer.save_pretrained(folder)
            copy_processor(config.model, folder)
    return directory.identity


def _mismatch_limit(config: RunConfig, engines: Engines) -> float | None:
    """The difference of log-probabilities, in nats, above which the mismatch has grown; None if it was not measured."""
    if engines.generator is None or engines.mismatch_level is None:
        return None
    growth = getattr(config.generator, "max_mismatch_growth", None)
    narrow = is_narrow(config.model, config.trainer, config.generator)
    return mismatch_limit(engines.mismatch_level, growth, engines.generator.capabilities, is_narrow=narrow)
