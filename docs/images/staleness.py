"""Draws docs/images/staleness.svg from the results of benchmarks/staleness.py, and prints their table.

python docs/images/staleness.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

OUTPUT = Path(__file__).with_suffix(".svg")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "staleness.json"

COLORS = {"none": "#d9622b", "importance_weight": "#1f83b4", "bypass": "#2c8c5a"}
TABLE_STEPS = (40, 60, 80, 100)

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 350, 230, 44, 40, 12, 40

Curves = Sequence[Sequence[float]]
"""The accuracies of each seed, one for each evaluation."""


def interval(values: Sequence[float], *, samples: int = 2000) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean of `values`.

    >>> interval([0.5, 0.5, 0.5])
    (0.5, 0.5)
    """
    rng = random.Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(samples))
    return means[round(0.025 * (samples - 1))], means[round(0.975 * (samples - 1))]


def curves_of(results: Mapping[str, Any]) -> dict[tuple[int, str], Curves]:
    """The curves of each staleness and correction, in the order of the table."""
    accuracy = results["accuracy"]
    return {
        (int(staleness), correction): [*accuracy[correction][staleness].values()]
        for staleness in sorted({k for by_staleness in accuracy.values() for k in by_staleness}, key=int)
        for correction in COLORS
        if staleness in accuracy.get(correction, {})
    }


def table(results: Mapping[str, Any]) -> str:
    """The table of docs/explanation/asynchronous.md: mean accuracies at some steps, with intervals."""
    lines = ["| staleness | correction | seeds | " + " | ".join(f"step {step}" for step in TABLE_STEPS) + " |"]
    lines += ["|---" * (3 + len(TABLE_STEPS)) + "|"]
    for (staleness, correction), curves in curves_of(results).items():
        columns = [[curve[results["steps"].index(step)] for curve in curves] for step in TABLE_STEPS]
        name = f"`{correction}`" if staleness else "not needed"
        lines.append(f"| {staleness} | {name} | {len(curves)} | " + " | ".join(map(_cell, columns)) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{fmean(values):.2f} ({low:.2f}-{high:.2f})"


def figure(results: Mapping[str, Any]) -> str:
    """An SVG with a panel for each staleness above 0; each has the curve of synchronous training too."""
    curves = curves_of(results)
    levels = [staleness for staleness, correction in curves if staleness and correction == "none"]
    panels = []
    for number, level in enumerate(levels):
        shown = {"synchronous": curves[0, "none"]} | {c: curves[s, c] for s, c in curves if s == level}
        x, y = _WIDTH * (number % 2), _HEIGHT * (number // 2)
        panel = "".join(_panel(f"staleness {level}", results["steps"], shown))
        panels.append(f'<g transform="translate({x},{y})">{panel}</g>')
    width, height = 2 * _WIDTH, _HEIGHT * ((len(levels) + 1) // 2) + 24
    legend = "".join(_legend(height - 8))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-size="12" '
        f'font-family="sans-serif" role="img"><rect width="{width}" height="{height}" fill="#ffffff"/>'
        f"{''.join(panels)}{legend}</svg>\n"
    )


def _panel(title: str, steps: Sequence[int], lines: Mapping[str, Curves]) -> Iterator[str]:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: float) -> str:
        return f"{_LEFT + width * step / steps[-1]:.1f}"

    def y(value: float) -> str:
        return f"{_TOP + height * (1 - value):.1f}"

    yield _text(_LEFT, 24, title, "start", weight="bold")
    for value in (0.0, 0.5, 1.0):
        yield f'<line x1="{x(0)}" x2="{x(steps[-1])}" y1="{y(value)}" y2="{y(value)}" stroke="#dddddd"/>'
        yield _text(_LEFT - 6, float(y(value)) + 4, f"{value:g}", "end")
    for step in steps[:: max(1, len(steps) // 5)]:
        yield _text(float(x(step)), _HEIGHT - _BOTTOM + 16, f"{step}")
    for name, curves in lines.items():
        color, columns = COLORS.get(name, "#555555"), [*zip(*curves, strict=True)]
        bounds = [*map(interval, columns)]
        outline = [(step, high) for step, (_, high) in zip(steps, bounds, strict=True)]
        outline += [(step, low) for step, (low, _) in [*zip(steps, bounds, strict=True)][::-1]]
        band = " ".join(f"{x(step)},{y(value)}" for step, value in outline)
        line = " ".join(f"{x(step)},{y(fmean(column))}" for step, column in zip(steps, columns, strict=True))
        dash = "" if name in COLORS else ' stroke-dasharray="4 3"'
        yield f'<polygon points="{band}" fill="{color}" opacity="0.15"/>'
        yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>'


def _legend(y: float) -> Iterator[str]:
    for number, (name, color) in enumerate({"synchronous": "#555555", **COLORS}.items()):
        x = _LEFT + 160 * number
        dash = "" if name in COLORS else ' stroke-dasharray="4 3"'
        yield f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" stroke-width="2"{dash}/>'
        yield _text(x + 30, y, "no correction" if name == "none" else name, "start")


def _text(x: float, y: float, text: str, anchor: str = "middle", *, weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}" fill="#333333">{text}</text>'


if __name__ == "__main__":
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    OUTPUT.write_text(figure(stored), encoding="utf-8")
    print(table(stored))
