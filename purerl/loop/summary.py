"""The summary of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from purerl.evaluation.problem_results import is_measurement
from purerl.loop.metrics.throughput import measured_by
from purerl.loop.resume import best_of
from purerl.store.checkpoint import path_of
from purerl.store.directory import RunDirectory
from purerl.store.settings import Checkpoint

__all__ = ["Summary", "summarize"]


@frozen
class Summary:
    """A finished run: its directory, its number of steps, and its evaluations `before` and `after` training.

    They have the metrics ``eval/...`` and ``validation/...``. `before` is empty without an evaluation at step 0.

    best_step      the step of the checkpoint that `checkpoint.best` has selected; None if there is none
    measured       tokens per second by phase and `mfu`, over all steps; `peak_process_memory` and, on an accelerator,
                   `peak_device_memory` in bytes: of the process that finished the run, at most over ranks
    was_finished   whether the run was finished already, and nothing has been done
    """

    directory: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    best_step: int | None = None
    measured: Mapping[str, float] = field(factory=dict, eq=False)
    was_finished: bool = field(default=False, eq=False)

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint. There is none if the run was over before its first step."""
        return path_of(self.directory / "checkpoints", self.steps)

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint that `checkpoint.best` has selected."""
        return None if self.best_step is None else path_of(self.directory / "checkpoints", self.best_step)

    @property
    def model(self) -> Path:
        """The trained policy in Hugging Face's format."""
        return self.directory / "final"


def summarize(
    settings: Checkpoint, directory: RunDirectory, record: Mapping[str, Any], memory: Sequence[Mapping[str, int]]
) -> Summary:
    """Write the summary of the finished run, whose last record this is. `memory` is the peak memory of each rank."""
    records = directory.records()
    summary = {
        "steps": record["step"],
        "before": _evaluation_in(records[0]),
        "after": _evaluation_in(record),
        "best_step": best_of(directory, settings),
        "measured": measured_by(records, memory),
    }
    directory.finish(summary)
    return Summary(directory.path, **summary)


def _evaluation_in(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of evaluations and validations in the record of a step."""
    return {name: value for name, value in record.items() if is_measurement(name) and value is not None}
