"""The console and the trackers that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from purerl.monitoring.console.live import Console
from purerl.monitoring.console.notebook import NotebookConsole, is_notebook
from purerl.monitoring.trackers.protocol import RunInfo
from purerl.monitoring.trackers.tracker_thread import TrackerThread
from purerl.monitoring.trackers.trackers import Trackers
from purerl.plugins import find, kind_of

__all__ = ["add_trackers", "open_console"]


def open_console(
    name: str, max_steps: int, *, title: str, note: str, history: Sequence[Mapping[str, Any]] = ()
) -> Trackers:
    """The console, which shows completions of every step, and first `note`. `history` is part of its curves.

    In a notebook it is a `NotebookConsole`.
    """
    trackers = Trackers()
    options = {"title": title, "note": note, "history": history}
    console = NotebookConsole(name, max_steps, **options) if is_notebook() else Console(name, max_steps, **options)
    trackers.add("console", lambda: console)
    return trackers


def add_trackers(
    trackers: Trackers,
    configs: Sequence[Any],
    *,
    folder: Path,
    run_info: Callable[[Path], RunInfo],
    every: int,
    history: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add a tracker for each of `configs`, in a thread of its own, with a directory in `folder`.

    They get completions every `every` steps, and the records `history` first.
    """
    for config in configs:
        kind = kind_of(config)
        path = folder / kind.replace(":", ".")
        path.mkdir(parents=True, exist_ok=True)
        build = partial(find("tracker", kind).build, config, run_info=run_info(path))
        trackers.add(kind, partial(TrackerThread, build), every=every, history=history)
