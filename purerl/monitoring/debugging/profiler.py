"""Profiles of single steps, by torch.profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from purerl.monitoring.debugging.settings import Debug
from purerl.system.devices.accelerator import memory_history

__all__ = ["profiled"]

_ROWS = 40  # of the table
_MAX_ENTRIES = 1_000_000  # of a memory snapshot


@contextmanager
def profiled(settings: Debug, folder: Path, step: int) -> Iterator[None]:
    """Record the block, which is `step`, if it is one of ``settings.profile_steps``.

    The files in `folder` are named after the step: ``000003.json.gz`` is a trace, in which the phases of the step have
    names; ``000003.txt`` lists the operations that took most of the time; ``000003.pickle`` is the memory snapshot.
    """
    if step not in settings.profile_steps:
        yield
        return
    folder.mkdir(exist_ok=True)
    path = folder / f"{step:06d}"
    with (
        _memory_snapshot(path.with_suffix(".pickle"), enabled=settings.memory_snapshot),
        torch.profiler.profile(profile_memory=settings.profile_memory) as profile,
    ):
        yield
    profile.export_chrome_trace(str(path.with_suffix(".json.gz")))
    averages = profile.key_averages()
    is_on_device = any(operation.self_device_time_total for operation in averages)
    order = "self_device_time_total" if is_on_device else "self_cpu_time_total"
    path.with_suffix(".txt").write_text(averages.table(sort_by=order, row_limit=_ROWS), encoding="utf-8")


@contextmanager
def _memory_snapshot(path: Path, *, enabled: bool) -> Iterator[None]:
    memory = memory_history() if enabled else None
    if memory is None:
        yield
        return
    memory._record_memory_history(max_entries=_MAX_ENTRIES)  # noqa: SLF001 - documented under this name
    try:
        yield
        memory._dump_snapshot(str(path))  # noqa: SLF001
    finally:
        memory._record_memory_history(enabled=None)  # noqa: SLF001
