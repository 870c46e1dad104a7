"""From the answers of a judge to a reward."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from purerl.rewards.endpoint.errors import UnusableAnswerError
from purerl.rewards.judges.scores import find_score, parse_number, without_thoughts
from purerl.rewards.judges.settings import Answer, Judge

__all__ = ["combine", "parse_score"]

_MAX_SHOWN = 300  # characters of an answer in messages


def parse_score(answer: Answer, text: str) -> float:
    """The score in `text`, the answer of a judge. Thoughts at its start are ignored, up to the last ``</think>``.

    Raises: UnusableAnswerError if there is none, if it is no number or unknown label, or if it is out of range.

    >>> parse_score(Answer(), "Correct, but long. **Score:** 7/10")
    0.6666666666666666
    >>> parse_score(Answer(json_field="grade", labels={"good": 1}, minimum=0, maximum=1), 'So: {"grade": "Good"}')
    1.0
    """
    try:
        score = _number(answer, _found(answer, without_thoughts(text)))
        if not answer.minimum <= score <= answer.maximum:
            what = f"a score of {score:g}, which is not from {answer.minimum:g} to {answer.maximum:g}"
            raise UnusableAnswerError(what)
    except UnusableAnswerError as error:
        raise UnusableAnswerError(f"{error}: {text[-_MAX_SHOWN:]!r}") from error
    return (score - answer.minimum) / (answer.maximum - answer.minimum) if answer.normalize else score


def _found(answer: Answer, text: str) -> Any:
    if answer.json_field is not None:
        return _field(answer.json_field, text)
    return find_score(answer, text) if answer.pattern is None else _match(answer.pattern, text)


def _match(pattern: str, text: str) -> str | None:
    """The score in the last match of `pattern`. None if its group is no part of the match."""
    matches = [*re.finditer(pattern, text)]
    if not matches:
        raise UnusableAnswerError(f"no text that matches {pattern!r}")
    return matches[-1]["score" if "score" in matches[-1].re.groupindex else 1]


def _field(path: str, text: str) -> Any:
    """The field at `path` of the last JSON object in `text` that has it."""
    values = [value for found in _objects(text) if (value := _at(found, path)) is not None]
    if not values:
        raise UnusableAnswerError(f"no JSON object with the field {path!r}")
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


def _number(answer: Answer, found: Any) -> float:
    if isinstance(found, float) or type(found) is int:
        found = float(str(found)) if isinstance(found, int) else found  # an integer may be larger than any float
        return _of_label(answer, f"{found:g}") if answer.labels else found
    word = str(found).strip()
    return _of_label(answer, word) if answer.labels else parse_number(answer, word)


def _of_label(answer: Answer, word: str) -> float:
    labels = {label.casefold(): value for label, value in answer.labels.items()}
    if word.casefold() not in labels:
        raise UnusableAnswerError(f"{word!r:.100} is none of {', '.join(answer.labels)}")
    return float(labels[word.casefold()])


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
