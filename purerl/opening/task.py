"""Opening a task: data files, tokenizers and reward functions, which are checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import evolve

from purerl.config.requirements import Requirements, is_reward
from purerl.config.reward_roles import check_role_names
from purerl.config.schema import RunConfig
from purerl.data.chat import Chat, TextOrMessages, open_chat
from purerl.data.examples import DataSet, value_counts
from purerl.data.notes import data_notes
from purerl.data.open import check_first_rows, open_run_chat, prompt_format_of, read_problems
from purerl.data.prompts import prompts_as_data
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError
from purerl.evaluation.settings import Evaluate
from purerl.models.tokenizer import check_same_ids, end_tokens, load_tokenizer, set_pad_token
from purerl.opening.data import check_learned, notes_on_data, read_files, split_files
from purerl.opening.engines import check_role_model
from purerl.opening.images import open_processor
from purerl.opening.recorded import check_recorded, check_recorded_tokens
from purerl.opening.row_checks import check_ground_truths
from purerl.opening.scorers import check_questions, open_readers
from purerl.rewards.adapters import RewardFunction
from purerl.rewards.check import check_rewards
from purerl.rewards.routing import COLUMN
from purerl.rewards.runner import RewardRunner
from purerl.rewards.settings import Gate, Reward, RewardWorkers
from purerl.rewards.sources import named_functions
from purerl.rewards.workers import default_num_workers
from purerl.rollouts.interaction import OpenedEnvironment, open_interaction
from purerl.rollouts.opened import Task, Training
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.settings import Rollout, WorkflowSettings
from purerl.settings import Model
from purerl.system.garbage import without_collections
from purerl.system.phases import phase

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "check_rows",
    "needs_reward",
    "notes_on_problems",
    "on_prompts",
    "open_runner",
    "open_task",
    "runner_of_functions",
    "task_of_model",
    "with_interaction",
]

_NO_FUNCTIONS: Mapping[str, RewardFunction] = MappingProxyType({})


@without_collections()
def open_task(
    config: RunConfig,
    needs: Requirements,
    *,
    functions: Mapping[str, RewardFunction] = _NO_FUNCTIONS,
    share: Callable[[int], int] = lambda number: number,
) -> Task:
    """The task of a run of `config`: its data and tokenizers are read, and checked against its reward functions.

    Nothing is started or written, and no call is collective.

    functions  reward functions that were passed as objects, by the name of their reward
    share      the part of a number of worker processes of this host that this rank has

    Raises: ConfigError and DataError for the first problem.
    """
    runner = open_runner(
        config.rewards,
        config.gates,
        config.reward_workers,
        functions=functions,
        share=share,
        needs_reward=needs_reward(config.environment, config.rollout),
    )
    check_recorded(config, needs.algorithm)
    files = read_files(config.data, config.evaluate, config.validation, needs.example_type)
    scored = [*([files.examples] if config.rollout is not None else []), *files.problems.values()]
    check_rows(runner, scored)
    check_questions(needs.scorers, scored)
    if runner.routed:
        runner.check_effect({source for each in scored for source in value_counts(each, COLUMN)})
    check_learned(files, needs)
    tokenizer = _open_tokenizer(config.model, config.rollout, needs)
    processor = open_processor(config.model, [files.examples, *files.others], config.environment)
    sampled = [section for section in (config.rollout, config.evaluate) if section]
    chat = open_run_chat(
        config.data,
        config.model,
        files.examples,
        files.others,
        tokenizer,
        processor,
        needs_stop_token=any(not section.stop_strings for section in sampled),
    )
    for name, role in needs.models.items():
        check_role_model(name, role)
    split = split_files(files, chat, config.data, config.evaluate, config.validation)
    notes = notes_on_data(
        split,
        chat,
        {*needs.number_columns, *runner.columns, *([COLUMN] if needs.teachers else [])},
        shows_row_settings=config.environment is None and not (config.rollout and config.rollout.workflow),
        refuses_unread=config.data.unused_columns == "error",
    )
    readers = open_readers(needs.scorers, chat, config.data.special_tokens)
    return Task(
        chat, split.problems, runner, readers, Training(split.examples, split.held_out, split.counts), notes=notes
    )


def open_runner(
    rewards: Sequence[Reward],
    gates: Sequence[Gate],
    workers: RewardWorkers,
    *,
    functions: Mapping[str, RewardFunction] = _NO_FUNCTIONS,
    share: Callable[[int], int] = lambda number: number,
    needs_reward: bool = True,
) -> RewardRunner:
    """The runner of `rewards` and `gates`, with its `share` of the `workers` of this host; see `RewardRunner`."""
    return RewardRunner(
        rewards,
        gates,
        functions=functions,
        timeout=workers.timeout,
        num_workers=share(workers.num_workers or default_num_workers()),
        max_memory=workers.max_memory,
        needs_reward=needs_reward,
    )


def runner_of_functions(rewards: Sequence[Any], gates: Sequence[Any], workers: RewardWorkers) -> RewardRunner:
    """The runner of `rewards` and `gates`: names, functions of this process, or Configs of kinds. No model is one.

    Raises: ConfigError for what cannot be called, and for gates without rewards.
    """
    named, named_gates, functions = named_functions(rewards, gates)
    if named_gates and not named:
        got = ", ".join(gate.full_name for gate in named_gates)
        raise ConfigError("gates has no effect", got=got, need="rewards", do="name a reward function")
    check_role_names((*named, *named_gates), ())
    check_rewards(named, named_gates, workers, functions)
    return open_runner(named, named_gates, workers, functions=functions)


def needs_reward(environment: EnvironmentSettings | None, rollout: Rollout | None) -> bool:
    """Whether only reward functions give rewards: neither the environment nor a workflow does."""
    return not ((environment and environment.gives_rewards) or (rollout and rollout.workflow))


def check_rows(runner: RewardRunner, data: Iterable[DataSet]) -> None:
    """Raise ConfigError if a reward cannot read the columns or the images of `data`, or if a row has no reward.

    Raises: DataError if a row has a ground truth that no completion can equal.
    """
    for each in data:
        for table in each.tables:
            runner.check_columns(table.column_names)
        if each.example_format.has_images:
            runner.check_images()
        if runner.routed:
            runner.check_sources(value_counts(each, COLUMN), ", ".join(each.paths))
        check_ground_truths(runner, each)


def _open_tokenizer(model: Model, rollout: Rollout | None, needs: Requirements) -> PreTrainedTokenizerBase:
    """The tokenizer of the policy. Raises: ConfigError if another model, or a recorded run, has other token ids."""
    tokenizer = load_tokenizer(model)
    check_recorded_tokens(rollout, tokenizer)
    if needs.trains_classifier:
        set_pad_token(tokenizer)
    for name, role in needs.models.items():
        if role.settings.model != model and not is_reward(name):
            check_same_ids(tokenizer, role.settings.model, name)
    return tokenizer


def task_of_model(
    model: Model,
    settings: Evaluate,
    *,
    rewards: RewardRunner,
    prompts: Sequence[TextOrMessages] = (),
    environment: EnvironmentSettings | None = None,
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
) -> Task:
    """The task of an evaluation of `model`, without a run, on ``settings.data`` and on `prompts`.

    A prompt is a list of messages, or a text: a message of the user if the tokenizer has a chat template.

    Raises: ConfigError and DataError for what is missing or invalid.
    """
    with phase("reading the data"):
        problems = read_problems(settings.data, settings.max_examples)
    check_rows(rewards, problems.values())
    tokenizer = load_tokenizer(model)
    if prompts:
        is_text = not tokenizer.chat_template and all(isinstance(prompt, str) for prompt in prompts)
        problems |= {"prompt": prompts_as_data(prompts, "text" if is_text else "messages")}
        check_rows(rewards, problems.values())
    processor = open_processor(model, problems.values(), environment)
    chat = open_chat(
        tokenizer,
        prompt_format_of(problems.values()),
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
        extra_stop_tokens=end_tokens(model),
        processor=processor,
    )
    if not chat.stop_tokens and not settings.stop_strings:
        what = f"the tokenizer of {model.path!r} has no end token"
        need = "one that ends a completion: otherwise each has the maximum length"
        raise ConfigError(what, need=need, do="set eos_token in its tokenizer_config.json")
    for data in problems.values():
        check_first_rows(chat, data)
    return Task(chat, problems, rewards, notes=notes_on_problems(problems, chat, rewards, environment))


def notes_on_problems(
    problems: Mapping[str, DataSet], chat: Chat, runner: RewardRunner, environment: EnvironmentSettings | None
) -> tuple[str, ...]:
    """Notes on the files of `problems`, whose completions `runner` scores."""
    return tuple(data_notes([*problems.values()], chat, runner.columns, shows_row_settings=environment is None))


def on_prompts(task: Task, prompts: Sequence[TextOrMessages], model: Model, rewards: RewardRunner) -> Task:
    """`task` with `prompts` in place of its problems, in the format of its data; `rewards` scores their completions.

    There is a processor of `model` also if only the prompts have images.
    """
    data = [*([task.training.examples] if task.training else []), *task.problems.values()]
    problems = {"prompt": prompts_as_data(prompts, prompt_format_of(data))}
    processor = task.chat.processor or open_processor(model, problems.values(), None)
    return evolve(task, problems=problems, chat=evolve(task.chat, processor=processor), rewards=rewards)


@phase("starting the environment")
def with_interaction(
    task: Task,
    environment: EnvironmentSettings | None,
    workflow: WorkflowSettings | None,
    runtime: Runtime,
    *,
    is_rewarded: bool = True,
    seed: int,
) -> Task:
    """`task` with its environment, which is started, or with the workflow of a user.

    One episode of the first example shows the tools of the environment. `is_rewarded` says whether the environment may
    give rewards. `seed` is that of the run.

    Raises: RolloutError and ConfigError as `open_interaction`.
    """
    if environment is None and workflow is None:
        return task
    example = task.first_example
    opened = open_interaction(environment, workflow, runtime, task.chat, example, seed=seed)
    if isinstance(opened, OpenedEnvironment) and not is_rewarded:
        opened = evolve(opened, gives_rewards=False)
    return evolve(task, interaction=opened)
