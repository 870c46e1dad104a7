"""The figure of the CPU seconds of each task by commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.board.page import Group

__all__ = ["FIGURE", "figure"]

FIGURE = Path(__file__).parents[2] / "docs" / "images" / "results.svg"
_COLORS = ("#d9622b", "#1f83b4", "#2c8c5a", "#8a5fb0", "#7f7f7f")
_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 190, 60, 20, 34, 40


def figure(groups: Sequence[Group]) -> str:
    """An SVG with a panel for each task: the mean CPU seconds of each commit, and those of each seed as dots.

    `groups` are in the order of their dates. Those with settings beside the seed are left out.
    """
    plain = [group for group in groups if not group.settings]
    tasks = list(dict.fromkeys(group.task for group in plain))
    panels = "".join(
        f'<g transform="translate(0,{_PANEL * number})">'
        f"{''.join(_panel(task, [group for group in plain if group.task == task], _COLORS[number % len(_COLORS)]))}</g>"
        for number, task in enumerate(tasks)
    )
    height = max(1, len(tasks)) * _PANEL
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" font-size="12" '
        f'font-family="sans-serif" role="img"><rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>{panels}</svg>\n'
    )


def _panel(task: str, groups: Sequence[Group], color: str) -> Iterator[str]:
    top = max(max(group.cpu_seconds) for group in groups) * 1.1
    right, bottom = _WIDTH - _RIGHT, _PANEL - _BOTTOM
    step = (right - _LEFT) / max(1, len(groups))

    def x(position: int) -> str:
        return f"{_LEFT + step * (position + 0.5):.1f}"

    def y(seconds: float) -> str:
        return f"{bottom - (bottom - _TOP) * seconds / top:.1f}"

    yield f'<text x="{_LEFT}" y="20">{task}: CPU seconds of a run</text>'
    for fraction in (0, 0.5, 1):
        seconds = top * fraction
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y(seconds)}" y2="{y(seconds)}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(seconds)}" text-anchor="end" fill="#666666">{seconds:.0f}</text>'
    means = [fmean(group.cpu_seconds) for group in groups]
    points = " ".join(f"{x(position)},{y(mean)}" for position, mean in enumerate(means))
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
    for position, (group, mean) in enumerate(zip(groups, means, strict=True)):
        for seconds in group.cpu_seconds:
            yield f'<circle cx="{x(position)}" cy="{y(seconds)}" r="2" fill="{color}" fill-opacity="0.4"/>'
        yield f'<circle cx="{x(position)}" cy="{y(mean)}" r="4" fill="{color}"/>'
        label = f"{group.commit[:8]} {group.date}"
        yield f'<text x="{x(position)}" y="{_PANEL - 20}" text-anchor="middle" fill="#666666">{label}</text>'
