"""The parts of README.md that are made from results: char_count and its curve, and the default recipe."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.board.curve import RECIPE, lines_of
from benchmarks.board.page import Group

__all__ = ["README", "with_results"]

README = Path(__file__).parents[2] / "README.md"
_DEFAULT, _METRIC = "addition", "eval/accuracy"
_CURVE = f"[![Accuracy of the recipe {RECIPE}](docs/images/{RECIPE}.svg)](docs/tutorials/real_model.md)\n\n"


def with_results(readme: str, groups: Sequence[Group], trl: Mapping[str, Any] | None) -> str:
    """`readme` with the newest results of both recipes between their markers; nothing where there are none.

    `groups` are in the order of their dates, and `trl` is the run of `benchmarks/char_count_trl.py`.
    """
    newest = {group.task: group for group in groups if not group.settings}
    default = _wrapped(_of_default(newest[_DEFAULT])) if _DEFAULT in newest else ""
    real = _CURVE + _wrapped(_of_char_count(newest[RECIPE], groups, trl)) if RECIPE in newest else ""
    return _between(_between(readme, _DEFAULT, default), RECIPE, real)


def _between(readme: str, name: str, text: str) -> str:
    marked = re.compile(rf"(?<=<!-- results of {name} -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
    return marked.sub(lambda _: text, readme, count=1)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _of_default(group: Group) -> str:
    before, after = (_range(group.values(when, _METRIC)) for when in ("before", "after"))
    return (
        f"On held-out problems reinforcement learning raised the accuracy from {before} to {after} on "
        f"{_seeds(len(group.results))}. A run took {fmean(group.cpu_seconds):.0f} CPU seconds "
        "([results](docs/reference/results.md))."
    )


def _of_char_count(group: Group, groups: Sequence[Group], trl: Mapping[str, Any] | None) -> str:
    ours, *others = lines_of(groups, trl)
    minutes = fmean(group.cpu_seconds) / 60
    model = "SmolLM2-135M-Instruct, a real language model,"
    before, after = _range(ours.before), _range(ours.after)
    first = (
        f"`purerl train {RECIPE}` teaches {model} to count letters on a CPU: from {before} of held-out problems after "
        f"SFT to {after} after {group.results[0]['steps']} steps of RL, on {_seeds(len(group.results))}, in "
        f"{minutes:.0f} CPU minutes."
    )
    rest = [
        f"TRL, from the same model, ends at {line.after[0]:.2f}; its RL phase takes {trl['cpu_seconds'] / 60:.0f} CPU "
        f"minutes, that of purerl {_rl_minutes(group):.0f}."
        if line.name == "TRL" and trl is not None
        else f"With rewards shuffled within each group it ends at {_range(line.after)}."
        for line in others
    ]
    return " ".join([first, *rest, "verl's numbers are those of its recipe with longer words, on a GPU."])


def _rl_minutes(group: Group) -> float:
    """CPU minutes of the steps."""
    return fmean(result["step_seconds"] for result in group.results) / 60


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"between {low} and {high}"
