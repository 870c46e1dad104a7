"""The console and the trackers that a configuration names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from purerl.plugins import find, kind_of
from purerl.protocols import RunInfo
from purerl.tracking.console import Console
from purerl.tracking.tracker_thread import TrackerThread
from purerl.tracking.trackers import Trackers

__all__ = ["add_trackers", "open_console"]


def open_console(name: str, max_steps: int, *, title: str, note: str | None) -> Trackers:
    """The console, which shows completions of every step, and first `note`."""
    trackers = Trackers()
    console = Console(name, max_steps, title=title, note=note)
    trackers.add("console", lambda: console)
    return trackers


def add_trackers(
    trackers: Trackers, configs: Sequence[Any], *, folder: Path, run_info: Callable[[Path], RunInfo], every: int
) -> None:
    """Add a tracker for each of `configs`, in a thread of its own, with a directory in `folder`.

    They get completions every `every` steps.
    """
    for config in configs:
        kind = kind_of(config)
        path = folder / kind.replace(":", ".")
        path.mkdir(parents=True, exist_ok=True)
        build = partial(find("tracker", kind).build, config, run_info=run_info(path))
        trackers.add(kind, partial(TrackerThread, build), every=every)
