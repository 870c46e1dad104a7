"""Process rewards: the steps of a completion, each of which a model scores at its last token.

This file imports no torch, so that a mistake in a configuration is reported quickly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from attrs import frozen

from purerl.settings import check_strings, one_of, setting

__all__ = ["Aggregate", "Step", "Steps", "aggregate", "split_steps"]

Aggregate = Literal["none", "last", "min", "mean", "sum", "product"]

_FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "mean": lambda scores: math.fsum(scores) / len(scores),
    "sum": math.fsum,
    "product": math.prod,
}


@frozen(kw_only=True)
class Steps:
    """Division of a completion into steps, and reduction of their scores.

    With `aggregate` none, the score of each step is the reward of its last token. Otherwise one number, computed from
    all scores, is the reward of the last token of the completion.
    """

    separator: str = setting("the text that ends a step", default="\n\n")
    marker: str | None = setting(
        "the text that the model reads after each step, and at whose last token it scores the step; if not given, the "
        "separator",
        default=None,
    )
    aggregate: Aggregate = setting(
        "none: each step has its own reward; otherwise the function of all scores that is the only reward",
        default="none",
        **one_of(*get_args(Aggregate)),
    )

    def __attrs_post_init__(self) -> None:
        check_strings("separator", [self.separator])
        check_strings("marker", [] if self.marker is None else [self.marker])


class Step(NamedTuple):
    """A step: its text, without the separator, and the position in the completion after its separator."""

    text: str
    end: int


def split_steps(completion: str, separator: str) -> list[Step]:
    r"""The steps of `completion`; those of white space belong to the step before. There is at least one.

    >>> split_steps("6 * 7 is 30 + 12\n\n\n\nIt is 42.", "\n\n")
    [Step(text='6 * 7 is 30 + 12', end=20), Step(text='It is 42.', end=29)]
    """
    steps: list[Step] = []
    end = 0
    for piece in completion.split(separator):
        end = min(end + len(piece) + len(separator), len(completion))
        if piece.strip():
            steps.append(Step(piece, end))
        elif steps:
            steps[-1] = Step(steps[-1].text, end)
    return steps or [Step(completion, len(completion))]


def aggregate(scores: Sequence[float], how: Aggregate) -> float:
    """One number for all `scores` of a completion; `how` is not none.

    >>> [aggregate([0.5, 1.0, 0.25], how) for how in ("last", "min", "sum", "product")]
    [0.25, 0.25, 1.75, 0.125]
    """
    return _FUNCTIONS[how](scores)
