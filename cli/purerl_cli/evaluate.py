"""`purerl eval` and `purerl sample`: a model's completions, judged and counted, or shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve

from purerl.errors import ConfigError
from purerl_cli.output import reported
from purerl_cli.results import show_scores, texts

if TYPE_CHECKING:
    from purerl.evaluation.results import Problem
    from purerl.loop.evaluation import Exam

__all__ = ["evaluate", "sample"]

_Model = Annotated[
    str | None, typer.Argument(help="A directory in Hugging Face's format, or a name on the hub.", show_default=False)
]
_Run = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A run: its model, or else its last checkpoint, and its settings.")
]
_Data = Annotated[list[str] | None, typer.Option(metavar="[NAME=]FILE", help="Problems; repeatable.")]
_Reward = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Reward function, as module:function; repeatable.")
]
_Gate = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Function that has to be at least 1; repeatable.")
]
_Samples = Annotated[int | None, typer.Option(min=1, help="Completions of each problem.", show_default="1")]
_Temperature = Annotated[float | None, typer.Option(min=0, help="0 takes the likeliest token.", show_default="0")]
_MaxTokens = Annotated[int | None, typer.Option(min=1, help="New tokens at most.", show_default="1024")]
_System = Annotated[str | None, typer.Option(help="System prompt of conversations that have none of their own.")]
_Seed = Annotated[int | None, typer.Option(min=0, help="Of the samples.", show_default="0")]
_reported = partial(reported, interrupted="nothing is kept")


@_reported
def evaluate(
    model: _Model = None,
    run: _Run = None,
    data: _Data = None,
    reward: _Reward = None,
    gate: _Gate = None,
    samples: _Samples = None,
    temperature: _Temperature = None,
    max_tokens: _MaxTokens = None,
    pass_at: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Each k of pass@k.", show_default="samples")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Function that finds the answer in a completion, for maj@k.")
    ] = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems of each file.")] = None,
    system: _System = None,
    seed: _Seed = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write everything there, problem by problem.")
    ] = None,
) -> None:
    """How many problems a model solves, and how sure that is."""
    from purerl.loop.evaluation import write_json

    if run is None and not reward:
        raise ConfigError("--reward is missing", need="what judges completions", do="name it, module:function")
    if json is not None and json.is_dir():
        raise ConfigError(f"--json {str(json)!r}", got="a directory", need="a file")
    if json is not None and not json.absolute().parent.is_dir():
        raise ConfigError(f"--json {str(json)!r}", got="no such directory", do="make it first")
    if json is not None and not os.access(json.absolute().parent, os.W_OK):
        raise ConfigError(f"--json {str(json)!r}", got="a directory without permission to write", do="name another")
    settings = {
        "samples_per_prompt": samples,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "pass_at_k": _numbers(pass_at),
        "answer_extractor": answer,
        "max_examples": examples,
        "data": data,
    }
    exam = _exam(model, run, settings, rewards=reward, gates=gate, system_prompt=system, seed=seed)
    results = _examined(exam)
    show_scores(results, exam.settings)
    if json is not None:
        write_json(json, exam, results)


@_reported
def sample(
    model: _Model = None,
    run: _Run = None,
    data: _Data = None,
    reward: _Reward = None,
    gate: _Gate = None,
    rows: Annotated[int, typer.Option(min=1, help="The first so many problems of each file.")] = 3,
    samples: _Samples = None,
    temperature: _Temperature = None,
    max_tokens: _MaxTokens = None,
    system: _System = None,
    seed: _Seed = None,
) -> None:
    """Show what a model answers, and what reward functions say of it."""
    settings = {
        "samples_per_prompt": samples,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_examples": rows,
        "data": data,
    }
    exam = _exam(model, run, settings, rewards=reward, gates=gate, system_prompt=system, seed=seed)
    # What failed is shown where it failed.
    typer.echo(
        texts(_examined(evolve(exam, reward_workers=evolve(exam.reward_workers, max_failure_rate=1.0)))), nl=False
    )


def _examined(exam: Exam) -> dict[str, list[Problem]]:
    """The results of `exam`; meanwhile stderr tells how far it is, and of what model it is if that is not plain."""
    from purerl.loop.evaluation import examine
    from purerl_cli.progress import Problems

    if exam.checkpoint is not None:
        typer.echo(f"the run is not finished: its checkpoint of step {int(exam.checkpoint.name)} is examined", err=True)
    totals = {name: len(data.indices) for name, data in exam.problems.items()}
    with Problems(totals, exam.settings.samples_per_prompt) as progress:
        return examine(exam, progress)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(map(int, text.split(",")))
    except ValueError as error:
        raise ConfigError("--pass-at", got=repr(text), need="whole numbers with commas between them, 1,8") from error


def _exam(model: str | None, run: Path | None, settings: Mapping[str, Any], **others: Any) -> Exam:
    """The exam of `model`, or of the model of `run`; what is None is as by default, or as in the run."""
    from purerl.backends.hf import generator
    from purerl.config.schema import Evaluate
    from purerl.loop.evaluation import exam_of_model, exam_of_run
    from purerl.protocols import Model

    given = {name: value for name, value in settings.items() if value is not None}
    others = {name: value for name, value in others.items() if value is not None}
    if run is None and model is not None:
        asked = Evaluate(**{"max_tokens": 1024} | given)
        return exam_of_model(Model(model), asked, generator=generator.Config(), **others)
    if run is None or model is not None:
        raise ConfigError("what to evaluate", got="both" if run else "nothing", need="MODEL, or --run DIR")
    if others:
        names = ", ".join(f"--{name.removesuffix('s')}" for name in others)
        do = "leave it out, or name the model, DIR/final"
        raise ConfigError(f"{names} has no effect", got="--run, which has its own", do=do)
    return exam_of_run(run, given)
