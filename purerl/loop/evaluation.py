"""An exam: a model evaluated outside of any run, by the code that evaluates it inside of one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from purerl.backends.tokenizer import end_tokens, load_tokenizer
from purerl.config.check import algorithm_of, check_answer
from purerl.config.schema import Evaluate, RewardWorkers, RunConfig
from purerl.config.structure import read_toml, to_dict
from purerl.data.chat import Chat, open_chat
from purerl.data.examples import DataSet
from purerl.errors import ConfigError, RunDirectoryError
from purerl.evaluation.results import Problem, as_json, metrics
from purerl.files import write_at_once
from purerl.loop.checkpoint import newest
from purerl.loop.data import form_of, glance, open_data, read_data, read_problems
from purerl.loop.evaluate import attempted
from purerl.loop.judging import check_failures, told
from purerl.loop.lengths import check_problems, longest_of
from purerl.loop.open import located, open_trainer, source_of
from purerl.loop.run import seed_of
from purerl.loop.update import sync
from purerl.plugins import find, kind_of
from purerl.protocols import Heard, Model, Trainer, unheard
from purerl.rewards.adapters import RewardFunction, RewardInput, name_of
from purerl.rewards.runner import RewardResult, RewardRunner

__all__ = ["Exam", "exam_of_model", "exam_of_run", "examine", "write_json"]


_LOG = logging.getLogger(__name__)


@frozen(kw_only=True)
class Exam:
    """What a model is asked, and by whom it is judged. Everything is read and checked but the model.

    model      a directory in Hugging Face's format, or a name on the hub
    settings   how many completions of each problem, and how they are sampled
    problems   data sets by their names
    chat       how prompts become tokens
    judge      the reward functions; without any, nothing is judged
    reward_workers  how many of their failures are lived with
    generator  the Config of the engine that samples
    seed       what the seeds of attempts depend on
    checkpoint of a run that is not finished, whose policy takes the place of `model`
    policy     what opens that policy
    """

    model: Model
    settings: Evaluate
    problems: Mapping[str, DataSet]
    chat: Chat
    judge: RewardRunner
    reward_workers: RewardWorkers
    generator: Any
    seed: int
    checkpoint: Path | None = None
    policy: Callable[[], Trainer] | None = None


def exam_of_model(
    model: Model,
    settings: Evaluate,
    *,
    generator: Any,
    rewards: Sequence[str | RewardFunction] = (),
    gates: Sequence[str] = (),
    system_prompt: str | None = None,
    chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    seed: int = 0,
) -> Exam:
    """An exam of `model` on ``settings.data``; without `rewards` nothing is judged.

    `rewards` are named, as module:function, or functions of this process. `generator` is the Config of the engine that
    samples.

    Raises: ConfigError and DataError for what is missing, wrong or without effect, before the model is loaded.
    """
    if not settings.data:
        raise ConfigError("data is missing", need="problems", do="name a file of them")
    if gates and not rewards:
        raise ConfigError("gates has no effect", got=", ".join(gates), need="rewards", do="name a reward function")
    check_answer(settings)
    problems = read_problems(settings)
    given = {name_of(one): one for one in rewards if not isinstance(one, str)}
    names = [one if isinstance(one, str) else name_of(one) for one in rewards]
    judge = _judge(dict.fromkeys(names, 1.0), gates, RewardWorkers(), problems, given)
    form, ends = form_of(problems.values()), end_tokens(model)
    chat = open_chat(
        load_tokenizer(model),
        form,
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
        extra_stop_tokens=ends,
    )
    if not chat.stop_tokens and not settings.stop_strings:
        what = f"the tokenizer of {model.path!r} has no end token"
        need = "one that ends a completion: without it, each goes on to its limit"
        raise ConfigError(what, need=need, do="set eos_token in its tokenizer_config.json")
    for data in problems.values():
        glance(chat, data)
    return Exam(
        model=model,
        settings=settings,
        problems=problems,
        chat=chat,
        judge=judge,
        reward_workers=RewardWorkers(),
        generator=generator,
        seed=seed,
    )


def exam_of_run(directory: Path, changes: Mapping[str, Any]) -> Exam:
    """The exam that a run's model passed last, but for `changes` of the section ``evaluate``.

    Of a run that is not finished it is the policy of the last checkpoint; the run may be going on meanwhile.

    Raises: RunDirectoryError where there is no run, or no checkpoint of one yet; ConfigError and DataError as
    `exam_of_model`.
    """
    config = _evaluated(directory)
    checkpoint = None if (directory / "summary.json").exists() else _last_checkpoint(directory)
    settings = evolve(config.evaluate, **changes)
    check_answer(settings)
    # Problems that are named take the place of those that are held out.
    data = evolve(config.data, validation_fraction=0.0) if settings.data else config.data
    config = located(evolve(config, evaluate=settings, data=data), directory)
    model = config.model if checkpoint else evolve(config.model, path=str(directory / "final"))
    examples, problems = read_data(config, source_of(config, algorithm_of(config))[1])
    opened = open_data(evolve(config, model=model), examples, problems, load_tokenizer(model))
    weights = {reward.function: reward.weight for reward in config.rewards}
    return Exam(
        model=model,
        settings=config.evaluate,
        problems=opened.problems,
        chat=opened.chat,
        judge=_judge(weights, config.gates, config.reward_workers, opened.problems),
        reward_workers=config.reward_workers,
        generator=config.generator,
        seed=config.seed,
        checkpoint=checkpoint,
        policy=checkpoint and partial(_policy, config, checkpoint),
    )


def _last_checkpoint(directory: Path) -> Path:
    found = newest(directory / "checkpoints")
    if found is None:
        got, need = "a run that is not finished, and has no checkpoint", "a model that it has saved"
        do = "go on with purerl train; checkpoint.every says how often it saves"
        raise RunDirectoryError(f"run directory {str(directory)!r}", got=got, need=need, do=do)
    return found


def _policy(config: RunConfig, checkpoint: Path) -> Trainer:
    trainer = open_trainer(config, "policy")
    trainer.load(checkpoint / "policy")
    return trainer


def _evaluated(directory: Path) -> RunConfig:
    """The configuration of the run at `directory`, which has evaluations."""
    what = f"run directory {str(directory)!r}"
    if not (directory / "config.toml").exists():
        raise RunDirectoryError(what, got="no config.toml", need="the directory of a run")
    config = read_toml(directory / "config.toml", RunConfig)
    if config.evaluate is None:
        do = "name the model, its final/, and the data and rewards"
        raise RunDirectoryError(what, got="a run without evaluations", do=do)
    return config


def _judge(
    weights: Mapping[str, float],
    gates: Sequence[str],
    reward_workers: RewardWorkers,
    problems: Mapping[str, DataSet],
    given: Mapping[str, RewardFunction] = MappingProxyType({}),
) -> RewardRunner:
    judge = RewardRunner(
        weights, gates, functions=given, timeout=reward_workers.timeout, num_workers=reward_workers.num_workers
    )
    for data in problems.values():
        for table in data.tables:
            judge.check_columns(table.column_names)
    return judge


def examine(exam: Exam, heard: Heard = unheard) -> dict[str, list[Problem]]:
    """What becomes of the problems of each data set. An exam is held once: its workers end with it.

    `heard` is told of completions as they come; `purerl.loop.evaluate.key_of` is how they are called.

    Raises: DataError where a prompt is too long for the generator, RewardError where too many reward functions failed,
    EngineError where the generator did.
    """
    build = find("generator", kind_of(exam.generator)).build
    generator = build(exam.generator, model=exam.model, seed=seed_of(exam.seed, "generator") % 2**31)
    try:
        check_problems(exam.chat, exam.problems, new=exam.settings.max_tokens, longest=longest_of(generator))
        if exam.policy is not None:
            sync(exam.policy(), generator, version=0)
        with exam.judge as judge:
            return attempted(
                exam.problems,
                exam.settings,
                generator=generator,
                chat=exam.chat,
                judge=partial(_judged, judge, exam.reward_workers),
                seed=exam.seed,
                heard=heard,
            )
    finally:
        generator.close()


def _judged(judge: RewardRunner, reward_workers: RewardWorkers, cases: Sequence[RewardInput]) -> list[RewardResult]:
    verdicts = judge(cases)
    check_failures(verdicts, reward_workers.max_failure_rate, do="mend the function")
    failures = [verdict.failure for verdict in verdicts if verdict.failure]
    if failures:
        what = "a reward function failed on %d of %d completions, which are left out; the first:\n%s"
        _LOG.warning(what, len(failures), len(verdicts), told(failures[0]))
    return verdicts


def write_json(path: Path, exam: Exam, results: Mapping[str, Sequence[Problem]]) -> None:
    """Write what was asked and all that became of it: numbers, and problem by problem."""
    settings = exam.settings
    told = {name: value for name, value in to_dict(settings).items() if name != "every"}
    said = {"model": str(exam.checkpoint or exam.model.path), "seed": exam.seed, "settings": told}
    data = {name: as_json(problems, settings) for name, problems in results.items()}
    write_at_once(path, json.dumps(said | {"metrics": metrics(results, settings), "data": data}, indent=2) + "\n")
