"""`purerl eval` and `purerl sample`: evaluate a model, or print its completions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer
from attrs import evolve

from purerl.errors import ConfigError
from purerl.system.terminal import escape
from purerl_cli import evaluation_options as options
from purerl_cli.arguments import (
    change_environment,
    parse_arguments,
    parse_environment,
    parse_kinds,
    parse_sampling,
    read_prompts,
)
from purerl_cli.output import with_debug
from purerl_cli.results import show_attempt, show_completions, show_scores

if TYPE_CHECKING:
    from purerl.evaluation.attempts import OnGroup
    from purerl.evaluation.problem_results import Problem
    from purerl.rollouts.types import Group
    from purerl.runs.evaluation import Evaluation

__all__ = ["evaluate", "sample"]

_command = partial(with_debug, hint="no results are saved")


@_command
def evaluate(
    model: options.Model = None,
    run: options.Run = None,
    data: options.Data = None,
    reward: options.Reward = None,
    gate: options.Gate = None,
    max_examples: options.MaxExamples = None,
    samples_per_prompt: options.SamplesPerPrompt = None,
    temperature: options.Temperature = None,
    sampling: options.SamplingSettings = None,
    max_tokens: options.MaxTokens = None,
    pass_at_k: options.PassAtK = None,
    answer_extractor: options.AnswerExtractor = None,
    accuracy_reward: options.AccuracyReward = None,
    environment: options.Environment = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    max_turns: options.MaxTurns = None,
    environment_settings: options.EnvironmentSettings = None,
    stop_string: options.StopString = None,
    system_prompt: options.SystemPrompt = None,
    chat_template_kwargs: options.ChatTemplateKwargs = None,
    dtype: options.DType = None,
    attention: options.Attention = None,
    device: options.Device = None,
    max_num_seqs: options.MaxNumSeqs = None,
    generator_settings: options.GeneratorSettings = None,
    seed: options.Seed = None,
    json: options.Json = None,
) -> None:
    """Evaluate a model: accuracy with a confidence interval, pass@k and maj@k."""
    _check_rewards(run, reward, environment)
    _check_json(json, data or ())
    settings = {
        "data": data,
        "max_examples": max_examples,
        "samples_per_prompt": samples_per_prompt,
        "temperature": temperature,
        "sampling": sampling,
        "max_tokens": max_tokens,
        "stop_strings": stop_string,
        "pass_at_k": _parse_integers(pass_at_k),
        "answer_extractor": answer_extractor,
        "accuracy_reward": accuracy_reward,
    }
    evaluation = _prepare(
        model,
        run,
        settings,
        of_model={"dtype": dtype, "attention": attention},
        engine={"max_num_seqs": max_num_seqs, "device": device, "settings": generator_settings},
        source={"environment": environment, "tool": tool, "mcp": mcp},
        turns={"max_turns": max_turns, "environment_settings": environment_settings},
        rewards=reward,
        gates=gate,
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
        seed=seed,
    )
    _score(evaluation, json)


@_command
def sample(
    model: options.Model = None,
    run: options.Run = None,
    prompt: options.Prompt = None,
    image: options.Image = None,
    data: options.Data = None,
    reward: options.Reward = None,
    gate: options.Gate = None,
    max_examples: options.MaxExamples = 3,
    samples_per_prompt: options.SamplesPerPrompt = None,
    temperature: options.Temperature = None,
    sampling: options.SamplingSettings = None,
    max_tokens: options.MaxTokens = None,
    environment: options.Environment = None,
    tool: options.Tool = None,
    mcp: options.Mcp = None,
    max_turns: options.MaxTurns = None,
    environment_settings: options.EnvironmentSettings = None,
    stop_string: options.StopString = None,
    system_prompt: options.SystemPrompt = None,
    chat_template_kwargs: options.ChatTemplateKwargs = None,
    dtype: options.DType = None,
    attention: options.Attention = None,
    device: options.Device = None,
    max_num_seqs: options.MaxNumSeqs = None,
    generator_settings: options.GeneratorSettings = None,
    seed: options.Seed = None,
    show_tokens: options.ShowTokens = False,
) -> None:
    """Print completions of a model, with their rewards."""
    settings = {
        "data": data,
        "max_examples": max_examples,
        "samples_per_prompt": samples_per_prompt,
        "temperature": temperature,
        "sampling": sampling,
        "max_tokens": max_tokens,
        "stop_strings": stop_string,
    }
    if model is not None and run is None and not prompt and not data:
        need, do = "--prompt TEXT, or problems", f"purerl sample {quote(model)} --prompt TEXT, or add --data FILE"
        raise ConfigError("what to complete", got="nothing", need=need, do=do)
    evaluation = _prepare(
        model,
        run,
        settings,
        prompts=read_prompts(prompt, image),
        of_model={"dtype": dtype, "attention": attention},
        engine={"max_num_seqs": max_num_seqs, "device": device, "settings": generator_settings},
        source={"environment": environment, "tool": tool, "mcp": mcp},
        turns={"max_turns": max_turns, "environment_settings": environment_settings},
        rewards=reward,
        gates=gate,
        system_prompt=system_prompt,
        chat_template_kwargs=chat_template_kwargs,
        seed=seed,
    )
    _print_completions(evaluation, show_tokens=show_tokens)


def _print_completions(evaluation: Evaluation, *, show_tokens: bool) -> None:
    """Run `evaluation`, and print its completions; with `show_tokens`, first the tokens of the first one."""
    from purerl.evaluation.first_attempt import FirstAttempt

    # Failures of reward functions are printed below their completions, so any number of them is accepted.
    evaluation, first = evolve(evaluation, max_failure_rate=1.0), FirstAttempt(evaluation.task)
    results = _run_with_progress(evaluation, first)
    if show_tokens:
        show_attempt(first.show(evaluation.settings.stop_strings))
    show_completions(results)


def _score(evaluation: Evaluation, json: Path | None) -> None:
    """Run `evaluation`, print its scores, and write all results to the file `json`."""
    from purerl.evaluation.accuracy import describe_accuracy
    from purerl.runs.evaluation import write_json

    if sentence := describe_accuracy(evaluation.accuracy_rewards):
        typer.echo(f"accuracy: {escape(sentence)}")
    results = _run_with_progress(evaluation)
    show_scores(results, evaluation.settings)
    if json is not None:
        write_json(json, evaluation, results)


def _run_with_progress(evaluation: Evaluation, callback: OnGroup | None = None) -> dict[str, list[Problem]]:
    """Run `evaluation`, and print its progress to stderr. `callback` is called with each finished group."""
    from purerl.runs.evaluation import run_evaluation
    from purerl_cli.progress import EvaluationProgress

    if (checkpoint := evaluation.checkpoint) is not None:
        whose = "the" if (checkpoint.parents[1] / "summary.json").exists() else "the run is not finished: its"
        typer.echo(f"{whose} checkpoint of step {int(checkpoint.name)} is evaluated", err=True)
    for note in evaluation.task.notes:
        typer.echo(f"note: {escape(note)}", err=True)
    totals = {name: data.num_rows for name, data in evaluation.task.problems.items()}
    with EvaluationProgress(totals) as progress:

        def on_group(name: str, group: Group) -> None:
            progress(name, group)
            if callback is not None:
                callback(name, group)

        return run_evaluation(evaluation, on_group)


def _check_rewards(run: Path | None, reward: Sequence[str] | None, environment: str | None) -> None:
    """Refuse an evaluation without rewards. Those of a run are in its configuration; tools give none."""
    if run is None and not reward and not environment:
        need, do = "a function that scores completions", "name it module:function"
        raise ConfigError("--reward is missing", need=need, do=do)


def _check_json(path: Path | None, data: Sequence[str]) -> None:
    """Refuse a file that cannot be written or that must not be replaced, before the model is evaluated."""
    from purerl.store.directory import CONTENT, is_started_run

    if path is None:
        return
    what, directory = f"--json {str(path)!r}", path.absolute().parent
    if path.is_symlink() or (path.exists() and not path.is_file()):
        got = "a directory" if path.is_dir() else "a link, a pipe or a device"
        raise ConfigError(what, got=got, need="a file", do="name another file")
    files = [Path(name.rpartition("=")[2]) for name in data]
    if path.exists() and any(file.exists() and path.samefile(file) for file in files):
        raise ConfigError(what, got="a file of --data", need="another file")
    folders = [folder for folder in path.resolve().parents if is_started_run(folder)]
    if any(path.resolve().relative_to(folder).parts[0] in CONTENT for folder in folders):
        raise ConfigError(what, got="a file of a run", need="another file")
    if not directory.is_dir():
        raise ConfigError(what, got="no such directory", do="create it first")
    if not os.access(directory, os.W_OK):
        raise ConfigError(what, got="a directory without permission to write", do="name another file")


def _parse_integers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError as error:
        raise ConfigError("--pass-at-k", got=repr(text), need="integers separated by commas, such as 1,8") from error


def _prepare(
    model: str | None,
    run: Path | None,
    settings: Mapping[str, Any],
    *,
    of_model: Mapping[str, Any],
    engine: Mapping[str, Any],
    source: Mapping[str, Any],
    turns: Mapping[str, Any],
    prompts: Sequence[Any] = (),
    **others: Any,
) -> Evaluation:
    """The evaluation of `model`, or of the model of `run`.

    settings  options of the section ``evaluate``; `sampling` has further ones
    of_model  options of the model
    engine    options of the engine, and `settings` with further ones
    source    options that name what a model interacts with
    turns     options of the section ``environment`` that a run may have too
    others    options that only `model` has

    An option that is None has its default, or the value of the run.
    """
    groups = (settings, of_model, engine, source, turns, others)
    settings, of_model, engine, source, turns, others = (
        {key: value for key, value in group.items() if value is not None} for group in groups
    )
    generator_settings = engine.pop("settings", ())
    settings |= parse_sampling(settings.pop("sampling", ()))
    _check_source(model, run, {**of_model, **source, **others})
    from purerl.backends.hf import generator
    from purerl.config.generators import change_generator
    from purerl.evaluation.settings import Evaluate
    from purerl.rewards.settings import Gate, Reward
    from purerl.runs.evaluation import evaluation_of_model, evaluation_of_run
    from purerl.settings import Model

    if run is not None:
        environment = change_environment(run, **turns)
        changes = {"engine": engine, "generator_settings": generator_settings, "environment": environment}
        return evaluation_of_run(run, settings, prompts=prompts, **changes)
    if "chat_template_kwargs" in others:
        others["chat_template_kwargs"] = parse_arguments(others["chat_template_kwargs"])
    evaluate = Evaluate(**{"max_tokens": 1024} | settings)
    config = change_generator(generator.Config(), engine, generator_settings)
    others |= {"environment": parse_environment(**source, **turns), "prompts": prompts}
    for name, cls in (("rewards", Reward), ("gates", Gate)):
        others[name] = parse_kinds(_OPTIONS[name], others.get(name, ()), cls)
    return evaluation_of_model(Model(str(model), **of_model), evaluate, generator=config, **others)


def _check_source(model: str | None, run: Path | None, model_options: Mapping[str, Any]) -> None:
    """Refuse a model beside a run, and options that the run determines."""
    if (run is None) == (model is None):
        raise ConfigError("what to evaluate", got="both" if run else "nothing", need="MODEL, or --run DIR")
    if run is not None and model_options:
        names = ", ".join(_OPTIONS.get(name, f"--{name.replace('_', '-')}") for name in model_options)
        do = "leave it out, or pass the model, DIR/final"
        raise ConfigError(f"{names} has no effect", got="--run, which determines it", do=do)


_OPTIONS = {"rewards": "--reward", "gates": "--gate"}
