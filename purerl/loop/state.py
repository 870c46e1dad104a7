"""Loop state, the end of a run, and a timer of phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define, field, frozen
from torch.profiler import record_function

from purerl.config.schema import StopWhen

__all__ = ["STOP", "Clock", "Ending", "LoopState"]

STOP = "callback/stop"
"""The metric of the step that a callback has made the last one."""


@frozen
class LoopState:
    """The contents of a checkpoint beside the trainers.

    step        number of finished steps
    num_draws   number of examples drawn from the data
    transform   state of the algorithm's advantage transform
    in_flight   the numbers of the draws that are being sampled
    curriculum  state of `data.curriculum`; empty without it
    """

    step: int = 0
    num_draws: int = 0
    transform: Any = ()
    in_flight: tuple[int, ...] = ()
    curriculum: Any = ()


@frozen
class Ending:
    """The end of a run: after `max_steps` steps, or earlier, when a metric is high enough or a callback says so.

    start  the step of the checkpoint of another run that the run started from: a callback ended the other run there
    """

    max_steps: int
    stop_when: StopWhen | None = None
    start: int | None = None

    def is_over(self, record: Mapping[str, Any]) -> bool:
        """Whether the run is over after the step with this record. A metric without a value is not high enough."""
        if record.get(STOP) and record["step"] != self.start:
            return True
        value = record.get(self.stop_when.metric) if self.stop_when else None
        return record["step"] >= self.max_steps or (value is not None and value >= self.stop_when.at_least)


@define
class Clock:
    """Seconds by phase, and CPU seconds of the process since the clock was created."""

    seconds: dict[str, float] = field(factory=dict)
    _cpu: float = field(factory=time.process_time, init=False, repr=False)

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the duration of the block to `phase`, which has this name in profiles too."""
        start = time.perf_counter()
        with record_function(phase):
            yield
        self.add(phase, time.perf_counter() - start)

    def add(self, phase: str, seconds: float) -> None:
        """Add `seconds` to `phase`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
