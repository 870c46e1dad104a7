"""The page: one HTML file with its style, its script and its data in it, which asks the network for nothing.

A content security policy in the page holds that: the script is known by its hash, and nothing else may be loaded or
run, whatever a completion says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    if not math.isfinite(megabytes * 1e6):
        raise ConfigError("the size of the report", got=f"{megabytes:g} MB", need="a number of megabytes")
    with _at_once(output) as write:
        runs = _runs(checked(paths))
        room = round(megabytes * 1e6) - len(page(runs).encode())
        if room < 0:
            got, do = f"{megabytes:g} MB", "give fewer runs, or allow more"
            need = f"{megabytes - room / 1e6:.1f} MB for the curves and settings alone"
            raise ConfigError("the size of the report", got=got, need=need, do=do)
        for run, path in zip(runs, paths, strict=True):
            run["completions"] = completions(path, size=room // len(runs))
        data = page(runs).encode()
        write(data)
    return Report(output, len(data), sum(run["completions"]["rows"] for run in runs))


@contextmanager
def _at_once(output: Path) -> Iterator[Callable[[bytes], object]]:
    """What writes the file `output`, which is there, whole, when the block has ended well, and otherwise as before.

    Raises: ConfigError where no file can be, or one of a run would be replaced.
    """
    path = output.resolve()
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        raise ConfigError("the report's file", got=repr(str(output)), need="a file in a folder that exists")
    if path.suffix != ".html" and any(_is_run(folder) for folder in path.parents):
        need, do = "a file outside of runs, or an .html file", "name another file"
        raise ConfigError("the report's file", got=repr(str(output)), need=need, do=do)
    partial = path.with_name(path.name + ".partial")
    try:
        file = partial.open("wb")
    except OSError as error:
        need, do = "a file that can be written", "name another file"
        raise ConfigError("the report's file", got=error, need=need, do=do) from error
    try:
        with file:
            yield file.write
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").exists() and (folder / "metrics.jsonl").exists()


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
