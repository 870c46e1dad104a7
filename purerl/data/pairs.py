"""Pairs that teach nothing, or only the length: equal answers, and an answer that is the start of the other one."""

from __future__ import annotations

from collections.abc import Iterator

from purerl.data.chat import Messages, TextOrMessages
from purerl.data.examples import DataSet, iterate_chunks, rows_at, rows_name
from purerl.data.images import text_of

__all__ = ["compare_answers", "pair_notes"]


def compare_answers(chosen: TextOrMessages, rejected: TextOrMessages) -> str | None:
    """Why the answers of a pair are nearly the same; None if they are not.

    >>> compare_answers("yes", "yes"), compare_answers("yes", "yes, but"), compare_answers("yes", "no")
    ('the chosen answer equals the rejected answer', 'the chosen answer is the start of the rejected answer', None)
    """
    if chosen == rejected:
        return "the chosen answer equals the rejected answer"
    if _is_start(chosen, rejected):
        return "the chosen answer is the start of the rejected answer"
    return "the rejected answer is the start of the chosen answer" if _is_start(rejected, chosen) else None


def _is_start(first: TextOrMessages, second: TextOrMessages) -> bool:
    """Whether `second` continues `first`, in its last message or after it."""
    if isinstance(first, str) or isinstance(second, str):
        return isinstance(first, str) and isinstance(second, str) and second.startswith(first)
    if not first or len(first) > len(second) or [*first[:-1]] != [*second[: len(first) - 1]]:
        return not first
    return _is_start_of_message(first, second)


def _is_start_of_message(first: Messages, second: Messages) -> bool:
    last, other = first[-1], second[len(first) - 1]
    others = [{key: value for key, value in message.items() if key != "content"} for message in (last, other)]
    return others[0] == others[1] and text_of(other.get("content")).startswith(text_of(last.get("content")))


def pair_notes(data: DataSet) -> Iterator[str]:
    """The pairs of `data` whose answers are nearly the same, counted and named by row, for each reason."""
    if data.example_format.example_type != "preferences":
        return
    rows: dict[str, list[int]] = {}
    for chunk in iterate_chunks(data.indices):
        for index, row in zip(chunk, rows_at(data, chunk), strict=True):
            if reason := compare_answers(row["chosen"], row["rejected"]):
                rows.setdefault(reason, []).append(index)
    for reason, indices in rows.items():
        pairs = "1 pair" if len(indices) == 1 else f"{len(indices):,} pairs"
        yield f"{pairs} in which {reason}: {rows_name(data, indices)}"
