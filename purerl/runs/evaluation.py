"""Evaluating a model outside of a run, with the code that evaluates it inside of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from purerl.config.check import accuracy_rewards_of
from purerl.config.generators import change_generator, sampled_model
from purerl.config.requirements import Requirements, requirements_of
from purerl.config.structure import to_dict
from purerl.data.chat import TextOrMessages
from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.evaluation.accuracy import select_accuracy_rewards
from purerl.evaluation.attempts import OnGroup, attempt_problems, num_attempts
from purerl.evaluation.problem_results import Problem, as_json, metrics
from purerl.evaluation.sampling import check_sampling
from purerl.evaluation.settings import Evaluate, check_answer_extractor
from purerl.opening.base_models import pin_recorded
from purerl.opening.engines import load_policy, open_engines, preview_engine
from purerl.opening.fit import check_problems_fit
from purerl.opening.start_checkpoint import read_evaluated_run
from purerl.opening.task import (
    needs_reward,
    notes_on_problems,
    on_prompts,
    open_runner,
    open_task,
    runner_of_functions,
    task_of_model,
    with_interaction,
)
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.rollouts.failures import AttemptFailures
from purerl.rollouts.opened import Engines, Task
from purerl.rollouts.runtime import Runtime
from purerl.seeds import restored_generators
from purerl.settings import Model, in_section
from purerl.system.files import write_atomically
from purerl.system.garbage import gc_frozen
from purerl.system.phases import phase
from purerl.system.private_files import private_folder
from purerl.system.strict_json import to_json

__all__ = ["Evaluation", "evaluation_of_model", "evaluation_of_run", "run_evaluation", "write_json"]


@frozen(kw_only=True)
class Evaluation:
    """An evaluation that is ready to run: everything has been read and checked, except for the model.

    task              the problems, how they become tokens, and how completions are scored
    model             a directory in Hugging Face's format, or a name on the hub
    generator         the Config of the engine that samples
    settings          how many completions of each problem, and how they are sampled
    accuracy_rewards  the functions of which the first one that applies decides whether a completion is correct
    seed              seed of the attempts
    interact          starts what the model interacts with: called with the task, and `runtime`
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
    interact: Callable[..., Task]
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
    runner = runner_of_functions(rewards, gates, workers)
    others = [*([ENVIRONMENT] if environment is not None and environment.gives_rewards else []), *runner.names]
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
        interact=partial(with_interaction, environment=environment, workflow=None, seed=seed),
        engines=partial(_open_sampler, generator=generator, model=model, seed=seed),
        max_failure_rate=workers.max_failure_rate,
    )


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

    directory           of the run, or RUN:STEP or RUN:best for the policy of a checkpoint
    engine              changes of the section ``generator``
    generator_settings  further ones, as KEY=VALUE; its kind may be another one
    environment         replaces the section ``environment``
    prompts             prompts that replace the problems of the run, in the format of its data. Their completions are
                        not scored with the reward functions of the run

    The model of an unfinished run is the policy of its newest whole checkpoint; the run may be in progress.

    Raises: RunDirectoryError if there is no run; CheckpointError if it has no checkpoint yet, or if all are damaged;
    ConfigError and DataError as `evaluation_of_model`.
    """
    config, directory, checkpoint = read_evaluated_run(directory)
    settings = evolve(config.evaluation, **changes)
    config = evolve(config, evaluate=settings, environment=_checked(environment or config.environment))
    check_answer_extractor(settings)
    generator = change_generator(config.generator, engine, generator_settings)
    check_sampling(settings, generator)
    accuracy_rewards = accuracy_rewards_of(config)
    data = evolve(config.data, validation_fraction=None) if settings.data else config.data  # problems replace it
    config = pin_recorded(evolve(config, data=data, validation=None), directory)
    needs = requirements_of(config).without_scorers() if prompts else requirements_of(config)
    model = config.model if checkpoint else evolve(config.model, path=str(directory / "final"))
    task = open_task(evolve(config, model=model), evolve(needs, models={}))
    num_examples, runner = task.training.examples.num_rows, task.rewards
    if prompts:
        needed = needs_reward(config.environment, config.rollout)
        task = on_prompts(task, prompts, model, open_runner((), (), config.reward_workers, needs_reward=needed))
    notes = notes_on_problems(task.problems, task.chat, runner, config.environment)
    model = evolve(model, dtype=sampled_model(config.model, config.trainer).dtype)
    engines = partial(_open_engines_of_run, needs=needs, generator=(generator, model), checkpoint=checkpoint)
    engines = partial(engines, num_examples=num_examples, rewards=config.rewards, gates=config.gates, seed=config.seed)
    workflow = config.rollout.workflow if config.rollout and config.environment is None else None
    interact = partial(with_interaction, environment=config.environment, workflow=workflow, seed=config.seed)
    return Evaluation(
        task=evolve(task, training=None, notes=notes),
        model=model,
        generator=generator,
        settings=settings,
        accuracy_rewards=accuracy_rewards,
        seed=config.seed,
        interact=partial(interact, is_rewarded=not (prompts and config.rewards)),
        engines=engines,
        max_failure_rate=config.reward_workers.max_failure_rate,
        checkpoint=checkpoint,
    )


def _open_engines_of_run(
    task: Task,
    runtime: Runtime,
    stack: ExitStack,
    *,
    needs: Requirements,
    generator: tuple[Any, Model],
    checkpoint: Path | None,
    num_examples: int,
    rewards: Sequence[Reward],
    gates: Sequence[Gate],
    seed: int,
) -> Engines:
    """The generator with the weights of `checkpoint`, if there is one, and the models whose scores are rewards."""
    engines = open_engines({}, task, runtime, stack, generator=generator, seed=seed)
    if checkpoint is not None:
        with closing(load_policy(needs, checkpoint, num_examples, seed=seed)) as policy:
            runtime.load_weights(policy.weights(), version=0)
    options = {"judges": needs.judges, "rewards": rewards, "gates": gates, "seed": seed}
    scorers = open_engines(needs.classifiers, task, runtime, stack, generator=None, **options)
    return evolve(engines, scorers=scorers.scorers)


def _checked(environment: EnvironmentSettings | None) -> EnvironmentSettings | None:
    """`environment`, if there is one. Raises ConfigError if it cannot be used."""
    if environment is not None:
        with in_section("environment", EnvironmentSettings):
            check_environment_settings(environment)
    return environment


def run_evaluation(evaluation: Evaluation, on_group: OnGroup = lambda name, group: None) -> dict[str, list[Problem]]:
    """The attempts at the problems of each data set. An evaluation runs once: its worker processes end with it.

    `on_group` is called with the name of the data set and the group of each problem, as they finish.

    Raises: DataError if a prompt is too long for the generator, RewardError or RolloutError if too many
    completions failed, EngineError if the generator failed.
    """
    settings, max_rate = evaluation.settings, evaluation.max_failure_rate
    expected = num_attempts(evaluation.task.problems, settings)
    failures = AttemptFailures.of_rate(max_rate, samples=settings.samples_per_prompt, expected=expected)
    with ExitStack() as stack:
        evaluation.task.rewards.check_running()
        runtime = Runtime()
        stack.callback(runtime.close)
        task = evaluation.task.with_images(stack.enter_context(private_folder("purerl-images-")))
        task = evaluation.interact(task, runtime=runtime)
        preview = preview_engine("generator", evaluation.generator, evaluation.model)
        check_problems_fit(task, settings, preview)
        engines = evaluation.engines(task, runtime, stack)
        check_problems_fit(task, settings, None if preview else engines.capabilities().generator)
        stack.enter_context(task.rewards)
        stack.enter_context(restored_generators())
        stack.enter_context(gc_frozen())
        with phase("starting the workers of reward functions"):
            task.rewards.start(runtime.run_here)
        with phase("sampling and scoring completions"):
            results = attempt_problems(
                task,
                engines,
                settings,
                accuracy_rewards=evaluation.accuracy_rewards,
                seed=evaluation.seed,
                on_group=failures.counting(on_group),
                on_missing=failures.add_missing,
            )
    failures.log_total()
    return results


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
