"""The output of `purerl eval` and `purerl sample`: a table of metrics, and completions without control characters.

Conversations of several turns have colors in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from purerl.errors import ImageError
from purerl.images import Image, hex_id
from purerl.monitoring.console.conversation import render_messages
from purerl.monitoring.console.messages import parse_messages
from purerl.system.terminal import escape
from purerl_cli.tables import show
from purerl_cli.tokens import print_text, show_endings, show_tokens

if TYPE_CHECKING:
    from purerl.evaluation.first_attempt import ShownAttempt
    from purerl.evaluation.problem_results import Attempt, Problem
    from purerl.evaluation.settings import Evaluate

__all__ = ["format_completions", "show_attempt", "show_completions", "show_scores"]


def show_scores(results: Mapping[str, Sequence[Problem]], settings: Evaluate) -> None:
    """Print a row of metrics for each data set. A metric without any scored completion is left empty."""
    from purerl.evaluation.problem_results import dataset_metrics

    every = {data_set: dataset_metrics(problems, settings) for data_set, problems in results.items()}
    attempts = (attempt for problems in results.values() for problem in problems for attempt in problem.attempts)
    totals = dict.fromkeys(f"reward/{name}" for attempt in attempts for name in attempt.result.totals)
    rewards = dict.fromkeys(name for values in every.values() for name in values if name.startswith("reward/"))
    components = [name for name in rewards if name not in totals]
    names = [f"pass@{k}" for k in settings.pass_ks]
    names += [f"maj@{settings.samples_per_prompt}"] if settings.answer_extractor else []
    # With one component that is the reward itself, it would be the same number again.
    names += ["reward", *(components if len(components) > 1 else ()), "length"]
    names += [
        name for name in ("turns", "tool_calls", "tool_errors") if any(name in values for values in every.values())
    ]
    names += ["truncated", "valid_fraction", "failed"]
    names += [name for name in totals if name.endswith("/cost") and any(values.get(name) for values in every.values())]
    rows = []
    for data_set, problems in results.items():
        metrics = every[data_set]
        has_accuracy = "accuracy" in metrics
        interval = f"{metrics['accuracy_low']:.3f} to {metrics['accuracy_high']:.3f}" if has_accuracy else ""
        cells = [data_set, f"{len(problems):,}", _format(metrics.get("accuracy")), interval]
        rows.append([*cells, *(_format(metrics.get(name)) for name in names)])
    accuracy = "accuracy" if settings.samples_per_prompt == 1 else f"mean@{settings.samples_per_prompt}"
    show("data set", "problems", accuracy, "95% interval", *map(escape, names), rows=rows, wrap=False)


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


def show_attempt(attempt: ShownAttempt | None) -> None:
    """Print the tokens of `attempt`, and how completions end. None: its workflow has failed."""
    if attempt is None:
        typer.echo("no tokens of the first problem: its workflow has failed\n")
        return
    tokens, sampled = attempt.row.tokens, sum(token.is_learned for token in attempt.row.tokens)
    where = f"{escape(attempt.data_set)}, problem {attempt.index}, attempt 1"
    typer.echo(f"{where}: {len(tokens):,} tokens, of which {sampled:,} were sampled")
    show_tokens(attempt.row)
    typer.echo("a completion ends with")
    show_endings(attempt.endings)
    typer.echo()


def show_completions(results: Mapping[str, Sequence[Problem]]) -> None:
    """Print each problem with its prompt, completions and rewards."""
    print_text(format_completions(results))


def format_completions(results: Mapping[str, Sequence[Problem]]) -> Text:
    """Each problem with its prompt, completions and rewards. Conversations start with the prompt."""
    lines = [line for name, problems in results.items() for problem in problems for line in _lines(name, problem)]
    return Text("\n").join([*(Text(line) if isinstance(line, str) else line for line in lines), Text()])


def _lines(data_set: str, problem: Problem) -> Iterator[str | Text]:
    yield f"{data_set}, problem {problem.index}"
    if any(attempt.messages is None for attempt in problem.attempts):
        yield _quote(problem.prompt)
        yield from map(_describe_image, problem.images)
    for number, attempt in enumerate(problem.attempts, start=1):
        yield f"attempt {number}: {_describe(attempt)}"
        yield _quote(attempt.completion) if attempt.messages is None else _render(attempt.messages)
        if attempt.result.failure and attempt.result.failure.traceback:
            yield indent(escape(attempt.result.failure.traceback.rstrip()), "    ")
    yield ""


def _describe_image(image: Image) -> str:
    name = f", {str(image.source)!r}" if isinstance(image.source, Path) else ""
    try:
        text = "image {}: {} x {} pixels{}".format(hex_id(image.id), *image.size, name)
    except ImageError as error:
        text = str(error)
    return escape(text, newlines=False)


def _describe(attempt: Attempt) -> str:
    result, length = attempt.result, f"{attempt.tokens} tokens, ended by {attempt.finish}"
    if result.failure:
        return f"{result.failure.function} {result.failure.kind}; {length}"
    components = ", ".join(f"{escape(name)} {value:g}" for name, value in result.components.items())
    return f"reward {result.reward:g} ({components}); {length}" if result.reward is not None else length


def _render(messages: str) -> Text:
    text = render_messages(parse_messages(messages))
    return Text("\n").join(Text.assemble("  ", line) for line in text.split("\n"))


def _quote(text: str) -> str:
    return indent(escape(text), "  | ", lambda line: True)
