"""The curves of the recipe char_count: ours, with shuffled rewards, and TRL's, beside the numbers that verl states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from attrs import frozen

from benchmarks.board.page import Group

__all__ = ["CURVE", "RECIPE", "Line", "curve", "lines_of", "read_trl"]

_ROOT = Path(__file__).parents[2]
CURVE = _ROOT / "docs" / "images" / "char_count.svg"
_TRL = _ROOT / "benchmarks" / "results" / "char_count_trl.json"

RECIPE, _SHUFFLED = "char_count", 'algorithm.kind="tests.recipes.shuffled"'
_SAMPLED, _HELD_OUT = "reward/mean", "eval/accuracy"
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 320, 50, 190, 20, 46


@frozen
class Line:
    """Accuracy after some steps: of the completions that a step samples, and on held-out problems, as [step, value]."""

    name: str
    color: str
    sampled: Sequence[Sequence[Sequence[float]]]
    held_out: Sequence[Sequence[Sequence[float]]]

    @property
    def before(self) -> list[float]:
        """The accuracy on held-out problems before training, of each run."""
        return [points[0][1] for points in self.held_out]

    @property
    def after(self) -> list[float]:
        """The accuracy on held-out problems after training, of each run."""
        return [points[-1][1] for points in self.held_out]


def read_trl() -> Mapping[str, Any] | None:
    """The stored run of `benchmarks/char_count_trl.py`; None if there is none."""
    return json.loads(_TRL.read_text(encoding="utf-8")) if _TRL.is_file() else None


def lines_of(groups: Sequence[Group], trl: Mapping[str, Any] | None) -> list[Line]:
    """The newest results of the recipe, of its control, and of TRL; those that there are."""
    newest = {group.settings: group for group in groups if group.task == RECIPE}
    shuffled = next((key for key in newest if _SHUFFLED in key), None)
    lines = [_line("purerl", "#d9622b", newest[()])] if () in newest else []
    if trl is not None:
        lines.append(Line("TRL", "#1f83b4", [list(enumerate(trl["rewards"]))], [trl[_HELD_OUT]]))
    return [*lines, *([_line("purerl, shuffled rewards", "#7f7f7f", newest[shuffled])] if shuffled else [])]


def _line(name: str, color: str, group: Group) -> Line:
    curves = [result["curve"] for result in group.results]
    sampled = [[(step - 1, value) for step, value in each[_SAMPLED]] for each in curves]
    return Line(name, color, sampled, [each[_HELD_OUT] for each in curves])


def curve(lines: Sequence[Line], published: Sequence[Mapping[str, Any]]) -> str:
    """An SVG: the mean of what was sampled as a line, held-out accuracy as dots, the published number dashed."""
    number = next(number for number in published if number["task"] == RECIPE)
    drawn = "".join([*_axes(lines), *_published(number), *(text for line in lines for text in _drawn(line, lines))])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="12" '
        f'font-family="sans-serif" role="img"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>{drawn}</svg>\n'
    )


def _x(step: float, lines: Sequence[Line]) -> str:
    last = max(points[-1][0] for line in lines for points in line.held_out)
    return f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * step / last:.1f}"


def _y(value: float) -> str:
    return f"{_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value:.1f}"


def _axes(lines: Sequence[Line]) -> Iterator[str]:
    right = _WIDTH - _RIGHT
    for value in (0, 0.25, 0.5, 0.75, 1):
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{_y(value)}" y2="{_y(value)}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{_y(value)}" text-anchor="end" fill="#666666">{value:g}</text>'
    for step in sorted({point[0] for line in lines for points in line.held_out for point in points}):
        at = f'x="{_x(step, lines)}" y="{_HEIGHT - _BOTTOM + 18}"'
        yield f'<text {at} text-anchor="middle" fill="#666666">{step}</text>'
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle" fill="#666666">steps of RL after SFT</text>'
    yield f'<text x="{right + 12}" y="{_TOP + 6}" font-weight="bold">accuracy</text>'


def _published(number: Mapping[str, Any]) -> Iterator[str]:
    right = _WIDTH - _RIGHT
    for name, value in (("after GRPO", number["after"]), ("after SFT", number["before"])):
        ends = f'x1="{_LEFT}" x2="{right}" y1="{_y(value)}" y2="{_y(value)}"'
        yield f'<line {ends} stroke="#8a5fb0" stroke-dasharray="4 4"/>'
        yield f'<text x="{right + 12}" y="{_y(value)}" fill="#8a5fb0">{number["library"]} {name}: {value:g}</text>'


def _drawn(line: Line, lines: Sequence[Line]) -> Iterator[str]:
    """The mean over the runs of what was sampled, and the dots of each run."""
    points = " ".join(f"{_x(step, lines)},{_y(value)}" for step, value in _means(line.sampled))
    yield f'<polyline points="{points}" fill="none" stroke="{line.color}" stroke-width="2"/>'
    for step, value in (point for each in line.held_out for point in each):
        yield f'<circle cx="{_x(step, lines)}" cy="{_y(value)}" r="4" fill="{line.color}" fill-opacity="0.6"/>'
    label = f'x="{_WIDTH - _RIGHT + 12}" y="{_TOP + 30 + 18 * lines.index(line)}"'
    yield f'<text {label} fill="{line.color}">{line.name}: {fmean(line.after):.2f}</text>'


def _means(curves: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, float]]:
    """The mean of all curves at each step that any of them has."""
    points = sorted((point for each in curves for point in each), key=lambda point: point[0])
    return [(step, fmean(value for _, value in each)) for step, each in groupby(points, key=lambda point: point[0])]
