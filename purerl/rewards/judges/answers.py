"""From the answers of a judge to a reward."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from purerl.rewards.endpoint.errors import UnusableAnswerError
from purerl.rewards.judges.settings import DEFAULT_PATTERN, Answer, Judge

__all__ = ["combine", "parse_score"]

_MAX_SHOWN = 300  # characters of an answer in messages


def parse_score(answer: Answer, text: str) -> float:
    """The score in `text`, the answer of a judge. Text before the last ``</think>`` is ignored.

    Raises: UnusableAnswerError if there is none, if it is no number or unknown label, or if it is out of range.

    >>> parse_score(Answer(), "Correct, but long. Score: 7")
    0.6666666666666666
    >>> parse_score(Answer(json_field="grade", labels={"good": 1}, minimum=0, maximum=1), 'So: {"grade": "Good"}')
    1.0
    """
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        raise UnusableAnswerError(f"an answer that ends before </think>: {_excerpt(text)}")
    found = _match(answer, text) if answer.json_field is None else _field(answer.json_field, text)
    score = _number(answer, found, text)
    if not answer.minimum <= score <= answer.maximum:
        what = f"a score of {score:g}, which is not from {answer.minimum:g} to {answer.maximum:g}"
        raise UnusableAnswerError(f"{what}: {_excerpt(text)}")
    return (score - answer.minimum) / (answer.maximum - answer.minimum) if answer.normalize else score


def _match(answer: Answer, text: str) -> Any:
    pattern = re.compile(answer.pattern or DEFAULT_PATTERN)
    matches = [*pattern.finditer(text)]
    if not matches:
        raise UnusableAnswerError(f"no text that matches {pattern.pattern!r}: {_excerpt(text)}")
    return matches[-1]["score" if "score" in pattern.groupindex else 1]


def _field(path: str, text: str) -> Any:
    """The field at `path` of the last JSON object in `text` that has it."""
    values = [value for found in _objects(text) if (value := _at(found, path)) is not None]
    if not values:
        raise UnusableAnswerError(f"no JSON object with the field {path!r}: {_excerpt(text)}")
    return values[-1]


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """All JSON objects in `text`, from the first to the last; none of them is part of another."""
    decoder, position = json.JSONDecoder(), text.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield value
        position = text.find("{", end)


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(answer: Answer, found: Any, text: str) -> float:
    word = str(found).strip()
    if answer.labels:
        labels = {label.casefold(): value for label, value in answer.labels.items()}
        if word.casefold() not in labels:
            raise UnusableAnswerError(f"{word!r:.100} is none of {', '.join(answer.labels)}: {_excerpt(text)}")
        return float(labels[word.casefold()])
    try:
        return float(word)
    except ValueError as error:
        raise UnusableAnswerError(f"{word!r:.100} is no number: {_excerpt(text)}") from error


def _excerpt(text: str) -> str:
    return repr(text[-_MAX_SHOWN:])


def _majority(scores: Sequence[float]) -> float:
    counts = Counter(scores)
    most = max(counts.values())
    return fmean(score for score, count in counts.items() if count == most)


_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "majority": _majority,
    "median": median,
    "min": min,
    "max": max,
}


def combine(scores: Sequence[float], judge: Judge) -> float | None:
    """One score for `scores`, those of the samples that have one; None if that is at most half of the samples.

    >>> judge = Judge(samples=3, temperature=1, combine="majority")
    >>> combine([0.5, 1.0, 1.0], judge), combine([0.5, 1.0], judge), combine([0.5], judge)
    (1.0, 0.75, None)
    """
    return _FUNCTIONS[judge.combine](scores) if 2 * len(scores) > judge.samples else None
