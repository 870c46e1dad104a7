"""Evaluating a model outside of a run, with the code that evaluates it inside of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from purerl.config.check import accuracy_rewards_of
from purerl.config.generators import change_generator, sampled_model
from purerl.config.requirements import Requirements, is_reward, requirements_of
from purerl.config.reward_roles import check_role_names
from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.data.chat import TextOrMessages
from purerl.data.limits import check_problem_lengths
from purerl.data.open import prompt_format_of
from purerl.data.prompts import prompts_as_data
from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, RunDirectoryError
from purerl.evaluation.accuracy import select_accuracy_rewards
from purerl.evaluation.attempts import OnGroup, attempt_problems, num_attempts
from purerl.evaluation.problem_results import Problem, as_json, metrics
from purerl.evaluation.sampling import check_sampling
from purerl.evaluation.settings import Evaluate, check_answer_extractor
from purerl.loop.paths import resolve_paths
from purerl.opening.base_models import pin_recorded
from purerl.opening.engines import load_policy, open_engines, preview_engine
from purerl.opening.images import open_processor
from purerl.opening.start_checkpoint import StartCheckpoint, find_checkpoint, read_config
from purerl.opening.task import needs_reward, notes_on_problems, open_runner, open_task, task_of_model, with_interaction
from purerl.protocols import Capabilities
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.check import check_rewards
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rewards.sources import named_functions
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.rollouts.failures import FailureLimit, MissingSample, describe_failure, missing_samples, remedy
from purerl.rollouts.interaction import OpenedEnvironment
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import WorkflowSettings
from purerl.rollouts.types import Group
from purerl.seeds import restored_generators
from purerl.settings import Model, in_section
from purerl.system.files import write_atomically
from purerl.system.private_files import private_folder
from purerl.system.process import frozen_objects
from purerl.system.strict_json import to_json

__all__ = ["Evaluation", "evaluation_of_model", "evaluation_of_run", "run_evaluation", "write_json"]

_LOG = logging.getLogger(__name__)


@frozen(kw_only=True)
class Evaluation:
    """An evaluation that is ready to run: everything has been read and checked, except for the model.

    task              the problems, how they become tokens, and how completions are scored
    model             a directory in Hugging Face's format, or a name on the hub
    generator         the Config of the engine that samples
    settings          how many completions of each problem, and how they are sampled
    accuracy_rewards  the functions of which the first one that applies decides whether a completion is correct
    seed              seed of the attempts
    interact          starts what the model interacts with
    engines           opens the generator, and the models whose scores are rewards
    max_failure_rate  of the reward functions
    checkpoint        of an unfinished run, whose policy replaces `model`
    """

    task: Task
    model: Model
    generator: Any
    settings: Evaluate
    accuracy_rewards: tuple[str, ...]
    seed: int
    interact: Callable[[Task, Runtime], Task]
    engines: Callable[[Task, Runtime, ExitStack], Engines]
    max_failure_rate: float
    checkpoint: Path | None = None


def evaluation_of_model(
    model: Model,
    settings: Evaluate,
    *,
    generator: Any,
    rewards: Sequence[str | RewardFunction | Reward | Any] = (),
    gates: Sequence[str | Gate | Any] = (),
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    environment: EnvironmentSettings | None = None,
    seed: int = 0,
    prompts: Sequence[TextOrMessages] = (),
) -> Evaluation:
    """An evaluation of `model` on ``settings.data``, and on `prompts`.

    `rewards` are names, as module:function, functions of this process, or Configs of kinds. `generator` is the Config
    of the engine. Each completion is an episode in `environment`, if there is one; it may give rewards itself. A prompt
    is a list of messages, or a text: a message of the user if the tokenizer has a chat template.

    Raises: ConfigError and DataError for what is missing, invalid or without effect, before the model is loaded.
    """
    if not settings.data and not prompts:
        raise ConfigError("data is missing", need="problems", do="name a file of problems")
    check_answer_extractor(settings)
    check_sampling(settings, generator)
    environment, workers = _checked(environment), RewardWorkers()
    runner = _runner(rewards, gates, workers)
    others = [*_rewards_of(environment), *runner.names]
    accuracy_rewards = select_accuracy_rewards(settings, [*runner.components], others)
    task = task_of_model(
        model,
        settings,
        rewards=runner,
        prompts=prompts,
        environment=environment,
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
    )
    return Evaluation(
        task=task,
        model=model,
        generator=generator,
        settings=settings,
        accuracy_rewards=accuracy_rewards,
        seed=seed,
        interact=partial(_interacting, environment=environment, seed=seed),
        engines=partial(_open_sampler, generator=generator, model=model, seed=seed),
        max_failure_rate=workers.max_failure_rate,
    )


def _runner(rewards: Sequence[Any], gates: Sequence[Any], workers: RewardWorkers) -> RewardRunner:
    named, named_gates, functions = named_functions(rewards, gates)
    if named_gates and not named:
        got = ", ".join(gate.full_name for gate in named_gates)
        raise ConfigError("gates has no effect", got=got, need="rewards", do="name a reward function")
    check_role_names((*named, *named_gates), ())
    check_rewards(named, named_gates, workers, functions)
    return open_runner(named, named_gates, workers, functions=functions)


def _rewards_of(environment: EnvironmentSettings | None) -> list[str]:
    """The names of the rewards that `environment` gives."""
    return [ENVIRONMENT] if environment is not None and environment.gives_rewards else []


def _interacting(
    task: Task,
    runtime: Runtime,
    *,
    seed: int,
    environment: EnvironmentSettings | None,
    workflow: WorkflowSettings | None = None,
    is_rewarded: bool = True,
) -> Task:
    """`task` with what the model interacts with; `is_rewarded` says whether the environment may give rewards."""
    task = with_interaction(task, environment, workflow, runtime, seed=seed)
    opened = task.interaction
    if is_rewarded or not isinstance(opened, OpenedEnvironment):
        return task
    return evolve(task, interaction=evolve(opened, gives_rewards=False))


def _open_sampler(
    task: Task, runtime: Runtime, stack: ExitStack, *, generator: Any, model: Model, seed: int
) -> Engines:
    """The generator of `model`."""
    return open_engines({}, task, runtime, stack, generator=(generator, model), seed=seed)


def evaluation_of_run(
    directory: Path,
    changes: Mapping[str, Any],
    *,
    engine: Mapping[str, Any] = MappingProxyType({}),
    generator_settings: Sequence[str] = (),
    environment: EnvironmentSettings | None = None,
    prompts: Sequence[TextOrMessages] = (),
) -> Evaluation:
    """The evaluation of a run's model with the settings of the run, except for `changes` of the section ``evaluate``.

    engine              changes of the section ``generator``
    generator_settings  further ones, as KEY=VALUE; its kind may be another one
    environment         replaces the section ``environment``
    prompts             prompts that replace the problems of the run, in the format of its data. Their completions are
                        not scored with the reward functions of the run

    The model of an unfinished run is the policy of its newest whole checkpoint; the run may be in progress.

    Raises: RunDirectoryError if there is no run; CheckpointError if it has no checkpoint yet, or if all are damaged;
    ConfigError and DataError as `evaluation_of_model`.
    """
    config = _config_with_evaluations(directory)
    checkpoint = None if (directory / "summary.json").exists() else find_checkpoint(StartCheckpoint(directory))
    settings = evolve(config.evaluate, **changes)
    config = evolve(config, environment=_checked(environment or config.environment))
    check_answer_extractor(settings)
    generator = change_generator(config.generator, engine, generator_settings)
    check_sampling(settings, generator)
    config = evolve(config, evaluate=settings)
    accuracy_rewards = accuracy_rewards_of(config)
    data = evolve(config.data, validation_fraction=None) if settings.data else config.data  # problems replace it
    config = evolve(config, data=data, validation=None)
    config = pin_recorded(resolve_paths(config, directory), directory)
    model = config.model if checkpoint else evolve(config.model, path=str(directory / "final"))
    needs = requirements_of(config)
    task = open_task(evolve(config, model=model), evolve(needs, models={}, scorers={} if prompts else needs.scorers))
    num_examples, runner = task.training.examples.num_rows, task.rewards
    task = _on_prompts(task, prompts, config, model) if prompts else task
    model = evolve(model, dtype=sampled_model(config.model, config.trainer).dtype)
    notes, rollout = notes_on_problems(task.problems, task.chat, runner, config.environment), config.rollout
    return Evaluation(
        task=evolve(task, training=None, notes=notes),
        model=model,
        generator=generator,
        settings=config.evaluate,
        accuracy_rewards=accuracy_rewards,
        seed=config.seed,
        interact=partial(
            _interacting,
            seed=config.seed,
            environment=config.environment,
            workflow=rollout.workflow if rollout and config.environment is None else None,
            is_rewarded=not (prompts and config.rewards),
        ),
        engines=partial(
            _open_engines_of_run,
            config=config,
            needs=needs,
            generator=(generator, model),
            checkpoint=checkpoint,
            num_examples=num_examples,
        ),
        max_failure_rate=config.reward_workers.max_failure_rate,
        checkpoint=checkpoint,
    )


def _on_prompts(task: Task, prompts: Sequence[TextOrMessages], config: RunConfig, model: Model) -> Task:
    """`task` with `prompts` in place of its problems; no function scores their completions.

    There is a processor of `model` also if only the prompts have images.
    """
    prompt_format = prompt_format_of([task.training.examples, *task.problems.values()])
    problems = {"prompt": prompts_as_data(prompts, prompt_format)}
    processor = task.chat.processor or open_processor(model, problems.values(), None)
    runner = open_runner((), (), config.reward_workers, needs_reward=needs_reward(config.environment, config.rollout))
    return evolve(task, problems=problems, chat=evolve(task.chat, processor=processor), rewards=runner)


def _open_engines_of_run(
    task: Task,
    runtime: Runtime,
    stack: ExitStack,
    *,
    config: RunConfig,
    needs: Requirements,
    generator: tuple[Any, Model],
    checkpoint: Path | None,
    num_examples: int,
) -> Engines:
    """The generator with the weights of `checkpoint`, if there is one, and the models whose scores are rewards."""
    engines = open_engines({}, task, runtime, stack, generator=generator, seed=config.seed)
    if checkpoint is not None:
        with closing(load_policy(needs, checkpoint, num_examples, seed=config.seed)) as policy:
            runtime.load_weights(policy.weights(), version=0)
    scorers = open_engines(
        {name: role for name, role in needs.models.items() if is_reward(name)},
        task,
        runtime,
        stack,
        generator=None,
        judges=needs.judges,
        rewards=config.rewards,
        gates=config.gates,
        seed=config.seed,
    )
    return evolve(engines, scorers=scorers.scorers)


def _checked(environment: EnvironmentSettings | None) -> EnvironmentSettings | None:
    """`environment`, if there is one. Raises ConfigError if it cannot be used."""
    if environment is not None:
        with in_section("environment", EnvironmentSettings):
            check_environment_settings(environment)
    return environment


def _config_with_evaluations(directory: Path) -> RunConfig:
    """The configuration of the run at `directory`. Raises RunDirectoryError if it has no evaluations."""
    config = read_config(directory)
    if config.evaluate is None:
        do = "name the model (its directory final/), the data and the rewards"
        raise RunDirectoryError(f"run directory {str(directory)!r}", got="a run without evaluations", do=do)
    return config


def run_evaluation(evaluation: Evaluation, on_group: OnGroup = lambda name, group: None) -> dict[str, list[Problem]]:
    """The attempts at the problems of each data set. An evaluation runs once: its worker processes end with it.

    `on_group` is called with the name of the data set and the group of each problem, as they finish.

    Raises: DataError if a prompt is too long for the generator, RewardError or RolloutError if too many
    completions failed, EngineError if the generator failed.
    """
    settings, num_completions = evaluation.settings, num_attempts(evaluation.task.problems, evaluation.settings)
    limit = FailureLimit(evaluation.max_failure_rate, remedy, expected=num_completions)
    failures = _Failures(limit, settings.samples_per_prompt)

    def count_and_report(name: str, group: Group) -> None:
        failures.add(group)
        on_group(name, group)

    with ExitStack() as stack:
        runtime = Runtime()
        stack.callback(runtime.close)
        task = evaluation.task.with_images(stack.enter_context(private_folder("purerl-images-")))
        task = evaluation.interact(task, runtime)
        preview = preview_engine("generator", evaluation.generator, evaluation.model)
        _check_lengths(task, settings, preview)
        engines = evaluation.engines(task, runtime, stack)
        _check_lengths(task, settings, None if preview else engines.capabilities().generator)
        stack.enter_context(task.rewards)
        stack.enter_context(restored_generators())
        stack.enter_context(frozen_objects())
        task.rewards.start(runtime.run_here)
        results = attempt_problems(
            task,
            engines,
            settings,
            accuracy_rewards=evaluation.accuracy_rewards,
            seed=evaluation.seed,
            on_group=count_and_report,
            on_missing=failures.add_missing,
        )
    if failures.limit.count:
        _LOG.warning("%d of %d completions failed, and are left out", failures.limit.count, failures.limit.scored)
    return results


def _check_lengths(task: Task, settings: Evaluate, engine: Capabilities | None) -> None:
    limit = engine and engine.max_sequence_length
    check_problem_lengths(task.chat, task.problems, new_tokens=settings.max_tokens, limit=limit)


@frozen
class _Failures:
    """Counts the failures of an evaluation, and shows the first one at once."""

    limit: FailureLimit
    samples: int

    def add(self, group: Group) -> None:
        self.limit.scored += self.samples
        for missing in missing_samples(group, self.samples):
            self.add_missing(missing)

    def add_missing(self, missing: MissingSample) -> None:
        if self.limit.count == 0:
            what = "a completion failed, and is left out; the first failure:\n%s"
            _LOG.warning(what, describe_failure(missing.failure))
        self.limit.add(missing.failure)


def write_json(path: Path, evaluation: Evaluation, results: Mapping[str, Sequence[Problem]]) -> None:
    """Write the settings, the metrics, and every attempt at every problem."""
    settings = {name: value for name, value in to_dict(evaluation.settings).items() if name != "every"}
    model = str(evaluation.checkpoint or evaluation.model.path)
    facts = {"model": model, "seed": evaluation.seed, "settings": settings}
    rewards = evaluation.accuracy_rewards
    facts |= {"accuracy_reward": [*rewards] if len(rewards) > 1 else next(iter(rewards), None)}
    data = {name: as_json(problems, evaluation.settings) for name, problems in results.items()}
    content = facts | {"metrics": metrics(results, evaluation.settings), "data": data}
    write_atomically(path, to_json(content, indent=2) + "\n")
