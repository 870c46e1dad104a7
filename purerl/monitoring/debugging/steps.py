"""Profiles and stacks of a step, as the settings of a run say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purerl.monitoring.debugging.profiler import profiled
from purerl.monitoring.debugging.settings import Debug
from purerl.monitoring.debugging.stacks import stacks_after

__all__ = ["debugged"]


@contextmanager
def debugged(settings: Debug, directory: Path, step: int) -> Iterator[None]:
    """Record the block, which is `step`, in files of the run in `directory`."""
    stacks = stacks_after(settings.stack_dump_after, directory / "stacks.txt", step)
    with stacks, profiled(settings, directory / "profile", step):
        yield
