"""Checkpoints of a run in progress, written while training continues, or while it waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Self

from purerl.ranks import Ranks, check_others, ranks_of_thread
from purerl.store.commit import StagedCheckpoint
from purerl.store.progress import checkpoint_progress
from purerl.system.phases import phase

__all__ = ["CheckpointWriter"]

_LOG = logging.getLogger(__name__)
_INTERVAL = 0.2  # seconds between two looks at the other ranks


class CheckpointWriter:
    """Writes checkpoints, at most one at a time. All `ranks` make the same calls, in their main threads.

    With `background`, a thread writes them. Its error is raised by the next `wait`, or `write`, in the main thread. A
    block of the writer ends when everything is written.
    """

    def __init__(self, ranks: Ranks, *, background: bool) -> None:
        self.background = background
        self._ranks = ranks_of_thread("checkpoints") if background else ranks
        self._job: _Job | None = None
        self._written: list[Path] = []

    def write(self, stage: Callable[[], StagedCheckpoint]) -> None:
        """Write the checkpoint that `stage` returns; with `background`, begin to.

        `stage` is called when the one before is complete, for which this waits.

        Raises: CheckpointError if this one or the one before cannot be written.
        """
        self.wait()
        checkpoint = stage()
        if self.background:
            self._job = _Job(checkpoint, self._ranks)
            self._job.start()
        else:
            self._written.append(checkpoint.write(self._ranks))

    @property
    def steps_in_flight(self) -> list[int]:
        """The step of the checkpoint that is being written, if there is one."""
        return [] if self._job is None else [self._job.checkpoint.step]

    @property
    def has_failed(self) -> bool:
        """Whether `wait` would raise what the thread has raised."""
        return self._job is not None and self._job.error is not None

    def wait(self) -> None:
        """Wait until the checkpoint that was begun last is complete.

        Raises: CheckpointError if it could not be written; EngineError if another rank has failed or ended.
        """
        measure = checkpoint_progress(self._job.checkpoint.path) if self._job is not None else str
        with phase("waiting until the checkpoint is written", measure=measure):
            while self._job is not None and self._job.is_alive():
                check_others()
                self._job.join(_INTERVAL)
        self._collect()

    def take_written(self) -> list[Path]:
        """The checkpoints that are complete, each once."""
        if self._job is not None and not self._job.is_alive() and self._job.error is None:
            self._collect()
        written, self._written = self._written, []
        return written

    def _collect(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        if job.error is not None:
            raise job.error
        self._written.append(job.checkpoint.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.wait()
        elif self._job is not None:
            self._job.join()
            if self._job.error is not None:
                _LOG.warning("%s was not completed: %s", self._job.checkpoint.path, self._job.error)


class _Job(Thread):
    """Writes a checkpoint. A process that is interrupted twice does not wait for it."""

    def __init__(self, checkpoint: StagedCheckpoint, ranks: Ranks) -> None:
        super().__init__(name="purerl checkpoint", daemon=True)
        self.checkpoint, self._ranks = checkpoint, ranks
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.checkpoint.write(self._ranks)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.error = error
