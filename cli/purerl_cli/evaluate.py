"""`purerl eval` and `purerl sample`: evaluate a model, or print its completions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve

from purerl.errors import ConfigError
from purerl.system.devices.kinds import DEVICE
from purerl.system.terminal import escape
from purerl_cli.arguments import (
    change_environment,
    parse_arguments,
    parse_environment,
    parse_kinds,
    parse_sampling,
    read_prompts,
)
from purerl_cli.output import with_debug
from purerl_cli.results import show_completions, show_scores

if TYPE_CHECKING:
    from purerl.evaluation.problem_results import Problem
    from purerl.runs.evaluation import Evaluation

__all__ = ["evaluate", "sample"]

_Model = Annotated[
    str | None, typer.Argument(help="A directory in Hugging Face's format, or a name on the hub.", show_default=False)
]
_Run = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN[:STEP]",
        help="A run directory: use its final model, or a checkpoint (a number, or best; of an unfinished run the last "
        "one), and its settings.",
    ),
]
_Data = Annotated[list[str] | None, typer.Option(metavar="[NAME=]FILE", help="File of problems; repeatable.")]
_Reward = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Reward function, as module:function, or a kind with its settings, as '{kind = \"format\"}'; repeatable.",
    ),
]
_Gate = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Function or kind that must return at least 1, or the reward is 0; repeatable."),
]
_MaxExamples = Annotated[int | None, typer.Option(min=1, help="Number of problems of each file, from the first on.")]
_SamplesPerPrompt = Annotated[int | None, typer.Option(min=1, help="Completions per problem.", show_default="1")]
_Temperature = Annotated[
    float | None, typer.Option(min=0, help="Sampling temperature; 0: greedy decoding.", show_default="0")
]
_MaxTokens = Annotated[int | None, typer.Option(min=1, help="Maximum number of new tokens.", show_default="1024")]
_SystemPrompt = Annotated[str | None, typer.Option(help="System prompt for conversations that have none.")]
_Prompt = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A prompt, rendered with the chat template if there is one; - reads stdin; repeatable."
    ),
]
_Image = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="An image before the text of each --prompt; repeatable."),
]
_Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment of each completion, which becomes an episode: module:Class, file.py:function, or the URL of "
        "a remote one.",
        show_default=False,
    ),
]
_Tool = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Function or class that the model can call, as module:function; repeatable."),
]
_Mcp = Annotated[
    list[str] | None,
    typer.Option(metavar="SERVER", help="MCP server with tools, a URL or a command line; repeatable."),
]
_MaxTurns = Annotated[int | None, typer.Option(min=1, help="Maximum number of turns of an episode.", show_default="8")]
_EnvironmentSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another setting of the section environment, such as kwargs.size=4 or timeout=10; repeatable.",
    ),
]
_StopString = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="String that ends a completion, beside the stop tokens; repeatable."),
]
_SamplingSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another parameter of the sampling, such as top_p=0.95, top_k=20 or regex=TEXT; repeatable.",
    ),
]
_ChatTemplateKwargs = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the chat template; repeatable.")
]
_DType = Annotated[
    str | None, typer.Option("--dtype", help="Of the weights: float32, bfloat16, ..., auto.", show_default="float32")
]
_Attention = Annotated[str | None, typer.Option(help="transformers' attention implementation.", show_default="sdpa")]
_Device = Annotated[str | None, typer.Option(help=f"{DEVICE}.", show_default="auto")]
_MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, help="Completions that are decoded together.", show_default="256")
]
_GeneratorSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Setting of the section generator, such as kind=vllm or server.python=PATH; repeatable.",
    ),
]
_PassAtK = Annotated[
    str | None,
    typer.Option(metavar="K,K,...", help="Values of k for pass@k.", show_default="the samples per prompt"),
]
_AccuracyReward = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Reward function or gate that decides whether a completion is correct.",
        show_default="the first reward that applies",
    ),
]
_AnswerExtractor = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Function that extracts the answer from a completion, for maj@k."),
]
_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write all results to this file, problem by problem.")]
_Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling.", show_default="0")]
_command = partial(with_debug, hint="no results are saved")


@_command
def evaluate(
    model: _Model = None,
    run: _Run = None,
    data: _Data = None,
    reward: _Reward = None,
    gate: _Gate = None,
    max_examples: _MaxExamples = None,
    samples_per_prompt: _SamplesPerPrompt = None,
    temperature: _Temperature = None,
    sampling: _SamplingSettings = None,
    max_tokens: _MaxTokens = None,
    pass_at_k: _PassAtK = None,
    answer_extractor: _AnswerExtractor = None,
    accuracy_reward: _AccuracyReward = None,
    environment: _Environment = None,
    tool: _Tool = None,
    mcp: _Mcp = None,
    max_turns: _MaxTurns = None,
    environment_settings: _EnvironmentSettings = None,
    stop_string: _StopString = None,
    system_prompt: _SystemPrompt = None,
    chat_template_kwargs: _ChatTemplateKwargs = None,
    dtype: _DType = None,
    attention: _Attention = None,
    device: _Device = None,
    max_num_seqs: _MaxNumSeqs = None,
    generator_settings: _GeneratorSettings = None,
    seed: _Seed = None,
    json: _Json = None,
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
    model: _Model = None,
    run: _Run = None,
    prompt: _Prompt = None,
    image: _Image = None,
    data: _Data = None,
    reward: _Reward = None,
    gate: _Gate = None,
    max_examples: _MaxExamples = 3,
    samples_per_prompt: _SamplesPerPrompt = None,
    temperature: _Temperature = None,
    sampling: _SamplingSettings = None,
    max_tokens: _MaxTokens = None,
    environment: _Environment = None,
    tool: _Tool = None,
    mcp: _Mcp = None,
    max_turns: _MaxTurns = None,
    environment_settings: _EnvironmentSettings = None,
    stop_string: _StopString = None,
    system_prompt: _SystemPrompt = None,
    chat_template_kwargs: _ChatTemplateKwargs = None,
    dtype: _DType = None,
    attention: _Attention = None,
    device: _Device = None,
    max_num_seqs: _MaxNumSeqs = None,
    generator_settings: _GeneratorSettings = None,
    seed: _Seed = None,
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
    # Failures of reward functions are printed below their completions, so any number of them is accepted.
    results = _run_with_progress(evolve(evaluation, max_failure_rate=1.0))
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


def _run_with_progress(evaluation: Evaluation) -> dict[str, list[Problem]]:
    """Run `evaluation`, and print its progress to stderr."""
    from purerl.runs.evaluation import run_evaluation
    from purerl_cli.progress import EvaluationProgress

    if (checkpoint := evaluation.checkpoint) is not None:
        whose = "the" if (checkpoint.parents[1] / "summary.json").exists() else "the run is not finished: its"
        typer.echo(f"{whose} checkpoint of step {int(checkpoint.name)} is evaluated", err=True)
    for note in evaluation.task.notes:
        typer.echo(f"note: {escape(note)}", err=True)
    totals = {name: data.num_rows for name, data in evaluation.task.problems.items()}
    with EvaluationProgress(totals) as progress:
        return run_evaluation(evaluation, progress)


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
