"""Write the report: one HTML file that contains its style, script and data, and makes no network requests.

The content security policy of the page allows only its own script and style, identified by their hashes, and images
that are embedded in it. No other resource can be loaded or executed, so the text of a completion cannot run code.
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
from purerl.monitoring.metric_meanings import meanings
from purerl.report.completions import NO_COMPLETIONS, select_completions
from purerl.report.read import check_runs, read_run, run_labels
from purerl.system.files import create
from purerl.system.phases import phase

__all__ = ["Report", "render_page", "write_report"]

_VIEWS = ("overview", "chart", "curves", "row", "completions")
_SCRIPTS = ("dom", "numbers", "data", "tokens", "conversation", *_VIEWS, "main")
_MAX_RECORDS_PER_RUN, _MIN_RECORDS_PER_RUN, _MAX_RECORDS = 1000, 200, 5000


class Report(NamedTuple):
    """A written report.

    path             of the HTML file
    size             of the file in bytes
    num_completions  number of completions in it
    skipped          a message for each file that could not be read and was left out
    """

    path: Path
    size: int
    num_completions: int
    skipped: tuple[str, ...] = ()


@phase("writing the report")
def write_report(paths: Sequence[Path], output: Path, *, megabytes: float) -> Report:
    """Write a report of the runs at `paths` to the file `output`.

    The file has at most `megabytes` MB. Curves and settings are always included; the remaining size is divided equally
    among the runs and filled with completions. Files of completions that cannot be read are left out, and the page says
    so. An existing file is replaced atomically.

    Raises: DataError if a path is not a run, ConfigError if `output` cannot be written or `megabytes` is too small.
    """
    if not math.isfinite(megabytes * 1e6):
        raise ConfigError("megabytes", got=f"{megabytes:g}", need="a finite number", do="set it to 5, for example")
    with _atomic_write(output) as write:
        check_runs(paths)
        max_records = min(_MAX_RECORDS_PER_RUN, max(_MAX_RECORDS // len(paths), _MIN_RECORDS_PER_RUN))
        runs = [
            {"name": label, **read_run(path, max_records=max_records), "completions": NO_COMPLETIONS}
            for label, path in zip(run_labels(paths), paths, strict=True)
        ]
        remaining_bytes = round(megabytes * 1e6) - len(render_page(runs).encode())
        if remaining_bytes < 0:
            need = f"at least {megabytes - remaining_bytes / 1e6:.1f}, the size of the curves and settings alone"
            raise ConfigError("megabytes", got=f"{megabytes:g}", need=need, do="set a larger size, or give fewer runs")
        for run, path in zip(runs, paths, strict=True):
            run["completions"] = select_completions(path, max_bytes=remaining_bytes // len(runs))
        data = render_page(runs).encode()
        write(data)
    completions = [run["completions"] for run in runs]
    skipped = tuple(message for each in completions for message in each["skipped"])
    return Report(output, len(data), sum(each["num_rows"] for each in completions), skipped)


@contextmanager
def _atomic_write(output: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes a file, which replaces `output` if the block succeeds. Raises: ConfigError."""
    path = output.resolve()
    if not path.parent.is_dir() or (path.exists() and not path.is_file()):
        need, do = "a file in an existing directory", "create the directory, or choose another file"
        raise ConfigError("output", got=repr(str(output)), need=need, do=do)
    is_run = any((above / "config.toml").exists() and (above / "metrics.jsonl").exists() for above in path.parents)
    if path.suffix != ".html" and is_run:
        need, do = "a file with the suffix .html, or a file outside of run directories", "choose another file"
        raise ConfigError("output", got=repr(str(output)), need=need, do=do)
    partial = path.with_name(path.name + ".partial")
    try:
        file = create(partial)
    except OSError as error:
        raise ConfigError("output", got=error, need="a writable file", do="choose another file") from error
    try:
        with file:
            yield file.write
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def render_page(runs: Sequence[dict[str, Any]]) -> str:
    """Render the HTML page for `runs`, the results of `read_run` with a name and completions."""
    names = sorted({name for run in runs for name in run["metrics"]})
    created = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"created": created, "runs": runs, "meanings": meanings(names)}
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    style, script = _read_asset("style.css"), "\n".join(_read_asset(f"{name}.js") for name in _SCRIPTS)
    text = Template(_read_asset("index.html")).substitute(
        title=escape(", ".join(run["name"] for run in runs)),
        policy=f"default-src 'none'; script-src {_csp_hash(script)}; style-src {_csp_hash(style)}",
        style=style,
        script=script,
        data=data.replace("<", r"\u003c"),  # so that it cannot close the script element that contains it
    )
    # A path may contain bytes that are not valid UTF-8. Their escape sequences mean the same in JSON.
    return text.encode("utf-8", errors="backslashreplace").decode()


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read_asset(name: str) -> str:
    return files("purerl.report").joinpath("assets", name).read_text(encoding="utf-8")
