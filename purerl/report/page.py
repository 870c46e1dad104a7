"""The page: one HTML file with its style, its script and its data in it, which asks the network for nothing.

A content security policy in the page holds that: the script is known by its hash, and nothing else may be loaded or
run, whatever a completion says.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from purerl.errors import ConfigError
from purerl.report.completions import completions
from purerl.report.meanings import meanings
from purerl.report.read import checked, labels, read_run

__all__ = ["Report", "page", "report"]

_SCRIPTS = ("dom", "numbers", "data", "tokens", "overview", "chart", "curves", "row", "completions", "main")
_LINES, _LINES_OF_ALL_RUNS = 1000, 5000


class Report(NamedTuple):
    """A report that was written: where, its size in bytes, and how many completions are in it."""

    path: Path
    size: int
    completions: int


def report(paths: Sequence[Path], output: Path, *, megabytes: float) -> Report:
    """Write a page about the runs at `paths` to `output`, of `megabytes` at most: the more, the more completions.

    Raises: DataError for what is no run, ConfigError where `output` cannot be, and where the curves alone need more.
    """
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise ConfigError("the report's file", got=repr(str(output)), need="a file in a folder that exists")
    runs = _runs(checked(paths))
    room = round(megabytes * 1e6) - len(page(runs).encode())
    if room < 0:
        got, do = f"{megabytes:g} MB", "give fewer runs, or allow more"
        need = f"{megabytes - room / 1e6:.1f} MB for the curves and settings alone"
        raise ConfigError("the size of the report", got=got, need=need, do=do)
    for run, path in zip(runs, paths, strict=True):
        run["completions"] = completions(path, size=room // len(runs))
    text = page(runs)
    output.write_text(text, encoding="utf-8")
    return Report(output, len(text.encode()), sum(run["completions"]["rows"] for run in runs))


def _runs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    lines = min(_LINES, max(_LINES_OF_ALL_RUNS // len(paths), 200))
    nothing = {"groups": [], "rows": 0, "steps": 0, "stored": 0}
    return [
        {"name": name, **read_run(path, lines=lines), "completions": nothing}
        for name, path in zip(labels(paths), paths, strict=True)
    ]


def page(runs: Sequence[dict[str, Any]]) -> str:
    """The page about `runs`."""
    names = sorted({name for run in runs for name in run["metrics"]})
    made = datetime.now(UTC).isoformat(timespec="seconds")
    data = {"made": made, "runs": runs, "meanings": meanings(names)}
    style, script = _asset("style.css"), "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    text = Template(_asset("index.html")).substitute(
        title=escape(", ".join(run["name"] for run in runs)),
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}",
        style=style,
        script=script,
        data=_embedded(data),
    )
    # A path may hold what is no character; in JSON the escape stands for the same.
    return text.encode("utf-8", errors="backslashreplace").decode()


def _embedded(data: Any) -> str:
    """`data` as JSON that HTML cannot mistake for the end of its script."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("purerl.report").joinpath("assets", name).read_text(encoding="utf-8")
