"""Evaluating a model outside of a run, with the code that evaluates it inside of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from purerl.backends.plugin import generator_plugin
from purerl.config.check import accuracy_rewards_of, algorithm_of
from purerl.config.generators import sampled_model
from purerl.config.reward_roles import check_role_names
from purerl.config.schema import RunConfig
from purerl.config.structure import to_dict
from purerl.data.chat import Chat, TextOrMessages, open_chat
from purerl.data.columns import PromptFormat
from purerl.data.examples import DataSet, rows_at
from purerl.data.limits import check_problem_lengths
from purerl.data.notes import data_notes
from purerl.data.open import check_first_rows, prompt_format_of, read_problems
from purerl.data.prompts import prompts_as_data
from purerl.envs.check import check_environment_settings
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, RunDirectoryError
from purerl.evaluation.accuracy import select_accuracy_rewards
from purerl.evaluation.problem_results import Problem, as_json, metrics
from purerl.evaluation.sampling import check_sampling
from purerl.evaluation.settings import Evaluate, check_answer_extractor
from purerl.loop.evaluate import OnGroup, attempt_problems, num_attempts
from purerl.loop.failures import FailureLimit, MissingSample, describe_failure, fix, missing_samples
from purerl.loop.generators import change_generator, open_generator
from purerl.loop.model_rewards import ModelRewards, model_rewards_of, reward_chats
from purerl.loop.paths import resolve_paths
from purerl.loop.run import reward_runner
from purerl.loop.run_data import check_rows, open_run_data
from purerl.models.tokenizer import end_tokens, load_tokenizer
from purerl.opening.base_models import pin_recorded
from purerl.opening.images import open_processor, use_images, with_store
from purerl.opening.start_checkpoint import Origin, find_checkpoint, read_config
from purerl.protocols import Capabilities, Trainer
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.check import check_rewards
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rewards.sources import named_functions
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.rollouts.interaction import Interaction, OpenedEnvironment, open_interaction, with_limit
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import WorkflowSettings
from purerl.rollouts.types import Group
from purerl.runs.export import load_policy
from purerl.seeds import restored_generators
from purerl.settings import Model, in_section
from purerl.system.files import write_atomically
from purerl.system.private_files import private_folder
from purerl.system.process import gc_frozen
from purerl.system.strict_json import to_json

__all__ = ["Evaluation", "evaluation_of_model", "evaluation_of_run", "run_evaluation", "write_json"]

_LOG = logging.getLogger(__name__)


@frozen(kw_only=True)
class Evaluation:
    """An evaluation that is ready to run: everything has been read and checked, except for the model.

    model            a directory in Hugging Face's format, or a name on the hub
    settings         how many completions of each problem, and how they are sampled
    problems         data sets by name
    chat             how prompts become tokens
    rewards          the reward functions; without any, nothing is rewarded
    max_failure_rate of the reward functions
    accuracy_rewards the functions of which the first one that applies decides whether a completion is correct
    generator        the Config of the engine that samples
    seed             seed of the attempts
    environment      what the model interacts with, or None
    workflow         a workflow of a user, or None
    is_rewarded      whether completions have rewards, of reward functions or of the environment
    checkpoint       of an unfinished run, whose policy replaces `model`
    policy           opens this policy
    model_rewards    opens the models whose scores are rewards
    notes            on the files of the problems
    """

    model: Model
    settings: Evaluate
    problems: Mapping[str, DataSet]
    chat: Chat
    rewards: RewardRunner
    max_failure_rate: float
    accuracy_rewards: tuple[str, ...]
    generator: Any
    seed: int
    environment: EnvironmentSettings | None = None
    workflow: WorkflowSettings | None = None
    is_rewarded: bool = True
    checkpoint: Path | None = None
    policy: Callable[[], Trainer] | None = None
    model_rewards: Callable[[], AbstractContextManager[ModelRewards]] = partial(nullcontext, ModelRewards())
    notes: tuple[str, ...] = ()


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
    problems = read_problems(settings.data, settings.max_examples)
    check_rows(runner, problems.values())
    tokenizer = load_tokenizer(model)
    if prompts:
        problems |= {"prompt": prompts_as_data(prompts, _format_of(prompts, tokenizer))}
        check_rows(runner, problems.values())
    processor = open_processor(model, problems.values(), environment)
    chat = open_chat(
        tokenizer,
        prompt_format_of(problems.values()),
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
        extra_stop_tokens=end_tokens(model),
        processor=processor,
    )
    _check_problems(model, settings, chat, problems.values())
    return Evaluation(
        model=model,
        settings=settings,
        problems=problems,
        chat=chat,
        rewards=runner,
        max_failure_rate=workers.max_failure_rate,
        accuracy_rewards=accuracy_rewards,
        generator=generator,
        seed=seed,
        environment=environment,
        is_rewarded=bool(others),
        notes=_notes(problems, chat, runner, environment),
    )


def _notes(
    problems: Mapping[str, DataSet], chat: Chat, runner: RewardRunner, environment: EnvironmentSettings | None
) -> tuple[str, ...]:
    return tuple(data_notes([*problems.values()], chat, runner.columns, shows_row_settings=environment is None))


def _format_of(prompts: Sequence[TextOrMessages], tokenizer: Any) -> PromptFormat:
    """How `prompts` are read: as messages if the tokenizer has a chat template, or if some of them are messages."""
    has_messages = not all(isinstance(prompt, str) for prompt in prompts)
    return "messages" if tokenizer.chat_template or has_messages else "text"


def _runner(rewards: Sequence[Any], gates: Sequence[Any], workers: RewardWorkers) -> RewardRunner:
    named, named_gates, functions = named_functions(rewards, gates)
    if named_gates and not named:
        got = ", ".join(gate.full_name for gate in named_gates)
        raise ConfigError("gates has no effect", got=got, need="rewards", do="name a reward function")
    check_role_names((*named, *named_gates), ())
    check_rewards(named, named_gates, workers, functions)
    return RewardRunner(
        named, named_gates, functions=functions, timeout=workers.timeout, num_workers=workers.num_workers
    )


def _rewards_of(environment: EnvironmentSettings | None) -> list[str]:
    """The names of the rewards that `environment` gives."""
    return [ENVIRONMENT] if environment is not None and environment.gives_rewards else []


def _check_problems(model: Model, settings: Evaluate, chat: Chat, problems: Iterable[DataSet]) -> None:
    """Raise ConfigError if nothing but the maximum length ends a completion, and as `check_first_rows`."""
    if not chat.stop_tokens and not settings.stop_strings:
        what = f"the tokenizer of {model.path!r} has no end token"
        need = "one that ends a completion: otherwise each has the maximum length"
        raise ConfigError(what, need=need, do="set eos_token in its tokenizer_config.json")
    for data in problems:
        check_first_rows(chat, data)


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
    checkpoint = None if (directory / "summary.json").exists() else find_checkpoint(Origin(directory))
    settings = evolve(config.evaluate, **changes)
    config = evolve(config, environment=_checked(environment or config.environment))
    check_answer_extractor(settings)
    sampler = change_generator(config.generator, engine, generator_settings)
    check_sampling(settings, sampler)
    accuracy_rewards = accuracy_rewards_of(evolve(config, evaluate=settings))
    data = evolve(config.data, validation_fraction=None) if settings.data else config.data  # problems replace it
    config = evolve(config, evaluate=settings, data=data, validation=None)
    config = pin_recorded(resolve_paths(config, directory), directory)
    model = config.model if checkpoint else evolve(config.model, path=str(directory / "final"))
    runner = reward_runner(config, {})
    opened = open_run_data(evolve(config, model=model), algorithm_of(config), {}, runner)
    problems, chat, models = opened.problems, opened.chat, {}
    if prompts:
        problems = {"prompt": prompts_as_data(prompts, prompt_format_of([opened.examples, *problems.values()]))}
        chat = _with_processor(chat, model, problems)
    elif chats := reward_chats(config, chat):
        models = {"model_rewards": partial(model_rewards_of, config, chat, chats)}
    return Evaluation(
        model=evolve(model, dtype=sampled_model(config).dtype),
        settings=config.evaluate,
        problems=problems,
        chat=chat,
        rewards=reward_runner(evolve(config, rewards=(), gates=()), {}) if prompts else runner,
        max_failure_rate=config.reward_workers.max_failure_rate,
        accuracy_rewards=accuracy_rewards,
        generator=sampler,
        seed=config.seed,
        environment=config.environment,
        workflow=config.rollout.workflow if config.rollout and config.environment is None else None,
        is_rewarded=not (prompts and config.rewards),
        checkpoint=checkpoint,
        notes=_notes(problems, chat, runner, config.environment),
        policy=checkpoint and partial(load_policy, config, checkpoint, opened.examples.num_rows),
        **models,
    )


def _with_processor(chat: Chat, model: Model, problems: Mapping[str, DataSet]) -> Chat:
    """`chat` with the processor of `model`, also if only `problems` have images."""
    return evolve(chat, processor=chat.processor or open_processor(model, problems.values(), None))


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
    failures = _Failures(
        FailureLimit(
            evaluation.max_failure_rate,
            fix,
            expected=num_attempts(evaluation.problems, evaluation.settings),
        ),
        evaluation.settings.samples_per_prompt,
    )

    def count_and_report(name: str, group: Group) -> None:
        failures.add(group)
        on_group(name, group)

    with closing(Runtime()) as runtime, private_folder("purerl-images-") as images:
        chat = with_store(evaluation.chat, images)
        interaction = _open_interaction(evaluation, runtime)
        preview = _preview(evaluation)
        _check_lengths(evaluation, preview)
        generator = open_generator(evaluation.generator, evaluation.model, evaluation.seed)
        with closing(generator), closing(runtime):
            use_images(chat, {"generator": generator})
            runtime.attach(generator)
            _check_lengths(evaluation, None if preview else generator.capabilities)
            if evaluation.policy is not None:
                policy = evaluation.policy()
                runtime.load_weights(policy.weights(), version=0)
                policy.close()
            with evaluation.model_rewards() as models, evaluation.rewards, restored_generators(), gc_frozen():
                evaluation.rewards.start(runtime.run_here)
                results = attempt_problems(
                    evaluation.problems,
                    evaluation.settings,
                    runtime=runtime,
                    chat=chat,
                    interaction=with_limit(interaction, generator.capabilities),
                    rewards=evaluation.rewards,
                    accuracy_rewards=evaluation.accuracy_rewards,
                    seed=evaluation.seed,
                    on_group=count_and_report,
                    model_rewards=models,
                    on_missing=failures.add_missing,
                )
    if failures.limit.count:
        _LOG.warning("%d of %d completions failed, and are left out", failures.limit.count, failures.limit.scored)
    return results


def _open_interaction(evaluation: Evaluation, runtime: Runtime) -> Interaction:
    example = next(rows_at(data, data.indices[:1])[0] for data in evaluation.problems.values())
    opened = open_interaction(
        evaluation.environment, evaluation.workflow, runtime, evaluation.chat, example, seed=evaluation.seed
    )
    if not isinstance(opened, OpenedEnvironment):
        return opened
    return evolve(opened, gives_rewards=opened.gives_rewards and evaluation.is_rewarded)


def _preview(evaluation: Evaluation) -> Capabilities | None:
    """The capabilities of the generator, before the model is loaded; None if its engine cannot tell."""
    preview = generator_plugin(evaluation.generator).preview
    return preview and preview(evaluation.generator, model=evaluation.model)


def _check_lengths(evaluation: Evaluation, engine: Capabilities | None) -> None:
    limit, new_tokens = engine and engine.max_sequence_length, evaluation.settings.max_tokens
    check_problem_lengths(evaluation.chat, evaluation.problems, new_tokens=new_tokens, limit=limit)


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
