"""The check of the section `trackers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.settings import in_section

__all__ = ["check_trackers"]


def check_trackers(trackers: Sequence[Any]) -> None:
    """Raise ConfigError for two trackers of one kind, and for a tracker that its own `check` refuses."""
    kinds = [kind_of(tracker) for tracker in trackers]
    for kind, tracker in zip(kinds, trackers, strict=True):
        check = getattr(find("tracker", kind), "check", None)
        if check is not None:
            with in_section("trackers", type(tracker)):
                check(tracker)
        if kinds.count(kind) > 1:
            raise ConfigError("trackers", got=f"{kinds.count(kind)} of the kind {kind!r}", need="one of each kind")
