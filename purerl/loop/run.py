"""What changes from step to step, one row before it is part of a batch, and time by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define, field, frozen
from torch.profiler import record_function

from purerl.rewards.runner import RewardResult

__all__ = ["Clock", "LoopState", "Trajectory"]


@frozen
class LoopState:
    """All that a checkpoint contains beside the trainers.

    step       number of finished steps
    num_draws  number of examples drawn from the data
    transform  state of the algorithm's advantage transform
    """

    step: int = 0
    num_draws: int = 0
    transform: Any = ()


@frozen
class Trajectory:
    """One row of a batch: its `fields`, the `texts` that people read, and the `result` of its reward functions."""

    fields: Mapping[str, Any]
    texts: Mapping[str, Any] = field(factory=dict)
    result: RewardResult = RewardResult()


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
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
