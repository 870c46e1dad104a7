"""Opening everything that a configuration names: files, data, tokenizer, engines, in the order of their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from purerl.algos.algebra import Algorithm
from purerl.config.check import accuracy_rewards_of, algorithm_of, updates_of
from purerl.config.generators import is_narrow
from purerl.config.paths import is_created_by_run
from purerl.config.reward_roles import is_reward
from purerl.config.roles import (
    ModelRole,
    model_roles,
    models_by_role,
    models_of,
    teacher_names,
)
from purerl.config.schema import RunConfig
from purerl.data.examples import read_examples
from purerl.data.open import (
    RunData,
    file_digests,
)
from purerl.evaluation.problem_results import as_rows, metrics
from purerl.loop.draws import Sampler
from purerl.loop.evaluate import attempt_problems, num_attempts
from purerl.loop.failures import RunFailures
from purerl.loop.generators import check_running, open_sampler
from purerl.loop.metrics.gradients import check_trainers
from purerl.loop.model_rewards import ModelRewards, open_model_rewards, reward_chats
from purerl.loop.run_data import first_example, open_run_data
from purerl.loop.sources import Source
from purerl.loop.state import Clock, LoopState
from purerl.loop.step import Learner
from purerl.loop.update import Schedule, loop_objectives
from purerl.loop.validation import Validator
from purerl.loop.workflows import examples_workflow, number_columns, open_source, purpose_of
from purerl.models.tokenizer import load_tokenizer, ordinary_tokens
from purerl.opening.base_models import identify_models, pin_commits
from purerl.opening.engines import open_trainers
from purerl.opening.expert_routes import use_routes
from purerl.opening.fit import check_row_lengths
from purerl.opening.images import use_images, with_store
from purerl.opening.recorded import check_recorded, recorded_files
from purerl.opening.weight_check import check_updates
from purerl.placement.join import SINGLE_PROCESS, RankContext
from purerl.planning.check import check_memory
from purerl.plugins import locate
from purerl.protocols import Generator, Trainer
from purerl.ranks import Ranks
from purerl.rewards.adapters import RewardFunction, RunLength
from purerl.rewards.runner import RewardRunner
from purerl.rewards.workers import default_num_workers
from purerl.rollouts.interaction import Interaction, open_interaction, with_limit
from purerl.rollouts.runtime import Runtime
from purerl.seeds import derive_seed
from purerl.store.directory import RunDirectory
from purerl.store.evaluations import write_evaluation
from purerl.system.devices.accelerator import release_cached_memory
from purerl.system.files import atomic_directory

__all__ = [
    "Run",
    "check_files",
    "check_inputs",
    "max_steps_of",
    "open_run",
    "prepare",
    "reward_runner",
]


@frozen
class Run:
    """Everything that a run has opened.

    `config` has resolved paths, and the commits of models on the hub. `max_steps` is the number of steps, also if
    `config` has a number of epochs. `evaluate` returns the metrics of the generator's weights at a step, and `validate`
    those of the policy on held-out data in a state of the loop. `files` has a digest of each data file, and `models`
    the fingerprint of the model of each role. `context` has the ranks. `mismatch_level` is that of generator and policy
    at the start, in nats; None without a generator.
    """

    config: RunConfig
    max_steps: int
    learner: Learner
    roles: Mapping[str, ModelRole]
    source: Source
    evaluate: Callable[..., dict[str, float]]
    validate: Callable[[LoopState], dict[str, float]]
    rewards: RewardRunner
    data: RunData
    files: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    generator: Generator | None
    model_rewards: ModelRewards
    runtime: Runtime
    context: RankContext
    mismatch_level: float | None = None

    @property
    def trainers(self) -> Mapping[str, Trainer]:
        return self.learner.trainers

    @contextmanager
    def measured_generation(self, clock: Clock) -> Iterator[None]:
        """Add the time in which the generator had something to do during the block to the phase "generate"."""
        engine = self.runtime.engine
        before = engine.busy_seconds if engine else 0.0
        yield
        if engine is not None and self.config.rollout is not None:
            clock.add("generate", engine.busy_seconds - before)

    def load_weights(self, version: int, clock: Clock) -> None:
        """Give the generator, if there is one, the weights of the policy, which are those after step `version`."""
        if self.generator is not None:
            with clock("sync"):
                if self.generator.capabilities.sleeps:
                    release_cached_memory()  # the generator needs the memory that training leaves
                self.runtime.load_weights(self.trainers["policy"].weights(), version)

    def let_generator_sleep(self, clock: Clock) -> None:
        """Let the generator release the memory of its devices until `load_weights`, if its settings say so."""
        with clock("sync"):
            self.runtime.sleep()

    def close(self) -> None:
        """End what is in flight, and release what the engines hold."""
        self.runtime.close()
        for engine in (self.generator, self.model_rewards, *self.trainers.values()):
            if engine is not None:
                engine.close()


def prepare(config: RunConfig, directory: Path) -> None:
    """Call the function `config.prepare_data`, once, to fill ``{run}/prepared``."""
    path = directory / "prepared"
    if config.prepare_data is None or path.exists():
        return
    with atomic_directory(path) as folder:
        locate(config.prepare_data)(folder, config.seed)


def check_inputs(config: RunConfig) -> None:
    """Read the data and tokenizers of `config` and its initial run, except those that the run itself creates.

    Raises: DataError and ConfigError, before an existing run is discarded.
    """
    for phase in filter(None, (config.initial_run, config)):
        check_files(phase)
        for model in models_of(phase, algorithm_of(phase)):
            if not is_created_by_run(model.path):
                load_tokenizer(model)


def check_files(config: RunConfig) -> list[str]:
    """Read the data files of `config`, and return those that the run itself creates.

    Raises: DataError; as `check_recorded` for a run on recorded completions.
    """
    algorithm = algorithm_of(config)
    check_recorded(config, algorithm)
    purpose = purpose_of(config, algorithm)
    problems = config.evaluate.data.values() if config.evaluate else ()
    held_out = config.validation.data if config.validation else ()
    named = [*((file, purpose) for file in (*config.data.files, *held_out)), *((file, "prompts") for file in problems)]
    for file, use in named:
        if not is_created_by_run(file):
            read_examples([file], use, columns=config.data.columns)
    return [file for file, _ in named if is_created_by_run(file)]


def max_steps_of(config: RunConfig, num_examples: int) -> int:
    """The number of steps: `max_steps`, or what `num_epochs` passes over the examples need."""
    return config.max_steps or math.ceil((config.num_epochs or 0) * num_examples / config.batch_size)


def open_run(
    config: RunConfig,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    context: RankContext = SINGLE_PROCESS,
) -> Run:
    """Open everything that `config` names; `functions` are reward functions that were passed as objects."""
    rollout = config.rollout
    with ExitStack() as on_error:
        runtime = Runtime(**({"stall_timeout": rollout.stall_timeout} if rollout else {}))
        on_error.callback(runtime.close)
        context.on_problem(runtime.fail)
        run = _open(config, directory, functions, runtime, context)
        on_error.pop_all()
    return run


def _open(
    config: RunConfig,
    directory: RunDirectory,
    functions: Mapping[str, RewardFunction],
    runtime: Runtime,
    context: RankContext,
) -> Run:
    algorithm = algorithm_of(config)
    models = identify_models(models_by_role(config, algorithm), directory)
    config = pin_commits(config, models_by_role(config, algorithm), models)
    roles, runner = model_roles(config, algorithm), reward_runner(config, functions, context)
    files = file_digests(_files_of(config, directory))
    directory.check_data(files)
    data = open_run_data(config, algorithm, roles, runner)
    data = evolve(data, chat=with_store(data.chat, directory.images))
    max_steps = max_steps_of(config, data.examples.num_rows)
    runner.length = RunLength(max_steps, data.examples.num_rows / config.batch_size)
    updates = updates_of(config, algorithm, max_steps)
    workflow = config.rollout and config.rollout.workflow
    interaction = open_interaction(
        config.environment, workflow, runtime, data.chat, first_example(data), seed=config.seed
    )
    context.ranks.on_first(lambda: _check_resources(config, context), "memory and servers")
    chats = reward_chats(config, data.chat)
    trainers = open_trainers(config, roles, updates, context.engines)
    model_rewards = open_model_rewards(config, data.chat, chats, trainers, context)
    generator = config.generator and open_sampler(config, context.engines)
    engines = {f"trainer of the {name}": trainer for name, trainer in trainers.items()}
    use_images(data.chat, {**engines, "generator": generator})
    level = generator and _check_generator(config, generator, trainers["policy"], data, context)
    if generator is not None:
        runtime.attach(generator, background=config.rollout is not None and config.rollout.background)
    use_routes(config, directory, trainers["policy"])
    learner = _learner(config, algorithm, trainers)
    capabilities = [trainer.capabilities for name, trainer in trainers.items() if not is_reward(name)]
    sampling = [generator.capabilities] if generator else []
    trained, evaluated = (with_limit(interaction, *each) for each in ([*capabilities, *sampling], sampling))
    run = Run(
        config=config,
        max_steps=max_steps,
        learner=learner,
        roles=roles,
        source=open_source(config, algorithm, data, runtime, trained, runner, directory, context.ranks, model_rewards),
        evaluate=partial(_evaluate, config, data, runtime, evaluated, runner, directory, context.ranks, model_rewards),
        validate=_validator(config, algorithm, data, learner),
        rewards=runner,
        data=data,
        files=files,
        models=models,
        generator=generator,
        model_rewards=model_rewards,
        runtime=runtime,
        context=context,
        mismatch_level=level,
    )
    engine = generator and generator.capabilities
    check_row_lengths(config, data, max_steps=max_steps, trainers=capabilities, generator=engine)
    return run


def _check_generator(
    config: RunConfig, generator: Generator, policy: Trainer, data: RunData, context: RankContext
) -> float | None:
    """The mismatch of `generator` and `policy` at the start; as `check_updates`. It is closed if that raises."""
    with ExitStack() as on_error:
        on_error.callback(generator.close)
        size = policy.capabilities.vocab_size
        level = check_updates(
            policy,
            generator,
            [token for token in ordinary_tokens(data.chat.tokenizer) if size is None or token < size],
            ranks=context.ranks,
            seed=derive_seed(config.seed, "weight check"),
            temperature=config.rollout.temperature if config.rollout else 1.0,
            is_narrow=is_narrow(config),
        )
        on_error.pop_all()
    return level


def _files_of(config: RunConfig, directory: RunDirectory) -> list[str]:
    """The data files that a run of `config` reads."""
    problems = config.evaluate.data.values() if config.evaluate else ()
    held_out = config.validation.data if config.validation else ()
    return [*config.data.files, *problems, *held_out, *recorded_files(config, directory.path)]


def _check_resources(config: RunConfig, context: RankContext) -> None:
    """Raise ConfigError if there is too little memory, and EngineError if servers that run already cannot be used."""
    check_memory(config, context.ranks.size, ranks_of_host=context.local_size)
    check_running(config)


def _learner(config: RunConfig, algorithm: Algorithm, trainers: Mapping[str, Trainer]) -> Learner:
    updates_per_step = config.ppo_epochs * config.minibatches
    objectives = loop_objectives(algorithm, updates_per_step=updates_per_step, is_sampling=config.rollout is not None)
    schedule = Schedule(config.ppo_epochs, config.minibatches, config.seed, config.critic_warmup)
    if config.debug.gradient_steps:
        check_trainers(trainers, objectives)
    is_sampling = config.rollout is not None and config.rollout.recorded is None
    max_staleness = config.rollout.max_staleness if config.rollout and is_sampling else None
    return Learner(algorithm, objectives, trainers, schedule, config.debug.gradient_steps, max_staleness)


def _validator(
    config: RunConfig, algorithm: Algorithm, data: RunData, learner: Learner
) -> Callable[[LoopState], dict[str, float]]:
    if data.validation is None:
        return lambda state: {}
    sampler = Sampler(data.validation, data.chat, config.seed, teacher_names(config), number_columns(algorithm))
    return Validator(learner, sampler, examples_workflow(config, algorithm, sampler), config.batch_size)


def _evaluate(
    config: RunConfig,
    data: RunData,
    runtime: Runtime,
    interaction: Interaction,
    runner: RewardRunner,
    directory: RunDirectory,
    ranks: Ranks,
    model_rewards: ModelRewards,
    *,
    step: int,
) -> dict[str, float]:
    settings = config.evaluate
    if settings is None or runtime.engine is None:
        return {}
    failures = RunFailures(directory, settings.samples_per_prompt, config.reward_workers.max_failure_rate)
    failures.start(step)
    failures.expect(num_attempts(data.problems, settings))
    results = attempt_problems(
        data.problems,
        settings,
        runtime=runtime,
        interaction=interaction,
        chat=data.chat,
        rewards=runner,
        accuracy_rewards=accuracy_rewards_of(config),
        seed=config.seed,
        on_group=lambda name, group: failures.add(group),
        ranks=ranks,
        model_rewards=model_rewards,
        on_missing=failures.add_missing,
    )
    if directory.is_owner:
        write_evaluation(directory.evaluations, step, as_rows(results))
    return metrics(results, settings)


def reward_runner(
    config: RunConfig, functions: Mapping[str, RewardFunction], context: RankContext = SINGLE_PROCESS
) -> RewardRunner:
    """What calls the reward functions of `config`, with the share of the workers that a rank in `context` has."""
    workers, environment = config.reward_workers, config.environment
    has_others = (environment and environment.gives_rewards) or (config.rollout and config.rollout.workflow)
    return RewardRunner(
        config.rewards,
        config.gates,
        functions=functions,
        timeout=workers.timeout,
        num_workers=context.share(workers.num_workers or default_num_workers()),
        max_memory=workers.max_memory,
        needs_reward=not has_others,
    )
