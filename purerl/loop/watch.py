"""Who is told of a run while it goes on: the console, and the trackers that the configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from purerl.config.schema import RunConfig
from purerl.config.structure import flat, to_dict
from purerl.loop.run import Sample
from purerl.plugins import find, kind_of
from purerl.protocols import RunInfo
from purerl.store.directory import RunDirectory
from purerl.tracking.console import Console
from purerl.tracking.tracker_thread import TrackerThread
from purerl.tracking.trackers import Trackers

__all__ = ["follow", "shown", "watched"]

_ROWS = 16


def watched(config: RunConfig, note: str | None) -> Trackers:
    """The console alone: it shows `note`, if there is one, and completions of every step."""
    watch = Trackers()
    title = f"{kind_of(config.algorithm)}, {config.model.path}"
    console = Console(config.name, config.max_steps, title=title, note=note)
    watch.add("console", lambda: console)
    return watch


def follow(watch: Trackers, config: RunConfig, place: RunDirectory, *, first: int) -> None:
    """Add the trackers of `config`, which get completions with every checkpoint; `first` is the step told first.

    Each is waited for only so long.
    """
    for tracker in config.trackers:
        kind = kind_of(tracker)
        folder = place.path / "trackers" / kind.replace(":", ".")
        folder.mkdir(parents=True, exist_ok=True)
        settings = flat(to_dict(config))
        run_info = RunInfo(config.name, place.identity, folder, settings, first)
        build = partial(find("tracker", kind).build, tracker, run_info=run_info)
        watch.add(kind, partial(TrackerThread, build), every=config.checkpoint.every)


def shown(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Some of the completions of a step, from all over it; empty where nothing was sampled."""
    judged = [sample for sample in samples if sample.texts]
    return [_row(sample) for sample in judged[:: max(1, len(judged) // _ROWS)][:_ROWS]]


def _row(sample: Sample) -> dict[str, Any]:
    fields = sample.fields
    return dict(sample.texts) | {"reward": sum(fields["reward"]) if any(fields["mask"]) else None}
