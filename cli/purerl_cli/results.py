"""What `purerl eval` and `purerl sample` print: a table of scores, and texts that a model wrote, made harmless."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING

from purerl_cli.tables import show

if TYPE_CHECKING:
    from purerl.config.schema import Evaluate
    from purerl.evaluation.results import Attempt, Problem

__all__ = ["harmless", "show_scores", "texts"]


def show_scores(results: Mapping[str, Sequence[Problem]], settings: Evaluate) -> None:
    """A row for each data set. What could not be told for want of judged completions is left empty."""
    from purerl.evaluation.results import dataset_metrics

    several = [
        *(f"pass@{k}" for k in settings.passes),
        *([f"maj@{settings.samples_per_prompt}"] if settings.answer_extractor else []),
    ]
    shown = [*several, "reward", "length", "truncated", "valid_fraction", "failed"]
    rows = []
    for name, problems in results.items():
        found = dataset_metrics(problems, settings)
        sure = f"{found['accuracy_low']:.3f} to {found['accuracy_high']:.3f}" if "accuracy" in found else ""
        facts = [name, f"{len(problems):,}", _number(found.get("accuracy")), sure]
        rows.append([*facts, *(_number(found.get(measure)) for measure in shown)])
    mean = "accuracy" if settings.samples_per_prompt == 1 else f"mean@{settings.samples_per_prompt}"
    show("data set", "problems", mean, "95 % interval", *shown, rows=rows, whole=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


def texts(results: Mapping[str, Sequence[Problem]]) -> str:
    """Each problem's prompt, and each attempt at it with what was said of it."""
    return "\n".join(line for name, problems in results.items() for one in problems for line in _told(name, one)) + "\n"


def _told(name: str, problem: Problem) -> Iterator[str]:
    yield f"{name}, problem {problem.index}\n{_quoted(problem.prompt)}"
    for number, attempt in enumerate(problem.attempts, start=1):
        yield f"attempt {number}: {_judgment(attempt)}\n{_quoted(attempt.completion)}"
        if attempt.result.failure and attempt.result.failure.traceback:
            yield indent(harmless(attempt.result.failure.traceback.rstrip()), "    ")
    yield ""


def _judgment(attempt: Attempt) -> str:
    verdict, length = attempt.result, f"{attempt.tokens} tokens, ended by {attempt.finish}"
    if verdict.failure:
        return f"{verdict.failure.function} {verdict.failure.kind}; {length}"
    said = ", ".join(f"{harmless(name)} {value:g}" for name, value in verdict.components.items())
    return f"reward {verdict.reward:g} ({said}); {length}" if verdict.reward is not None else length


def _quoted(text: str) -> str:
    return indent(harmless(text), "  | ", lambda line: True)


def harmless(text: str) -> str:
    r"""`text` as a terminal may show it: what is no printable character, such as an escape, is written out.

    >>> print(harmless("red \x1b[31m, back\b, \u202eright to left, [bold]"))
    red \x1b[31m, back\x08, \u202eright to left, [bold]
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
