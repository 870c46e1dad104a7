"""The sentence of README.md about the default recipe, from the results of its newest commit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.board.page import Group

__all__ = ["README", "with_sentence"]

README = Path(__file__).parents[2] / "README.md"
_RECIPE, _METRIC = "addition", "eval/accuracy"
_MARKED = re.compile(r"(?<=<!-- results of addition -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


def with_sentence(readme: str, groups: Sequence[Group]) -> str:
    """`readme` with the newest results of the default recipe between its markers; nothing if there are none.

    `groups` are in the order of their dates.
    """
    default = [group for group in groups if group.key == (_RECIPE, ())]
    text = textwrap.fill(_sentence(default[-1]), 120) + "\n" if default else ""
    return _MARKED.sub(lambda _: text, readme, count=1)


def _sentence(group: Group) -> str:
    before, after = (_range(group.values(when, _METRIC)) for when in ("before", "after"))
    count = len(group.results)
    seeds = f"{count} seeds" if count > 1 else "one seed"
    seconds = f"{fmean(group.cpu_seconds):.0f} CPU seconds"
    return (
        f"On held-out problems reinforcement learning raised the accuracy from {before} to {after} on {seeds}. "
        f"A run took {seconds} ([results](docs/reference/results.md))."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"between {low} and {high}"
