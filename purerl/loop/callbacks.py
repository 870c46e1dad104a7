"""Functions of the caller that a run calls after its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Attribute, field, frozen

from purerl.errors import ConfigError
from purerl.evaluation.problem_results import is_measurement

__all__ = ["NO_CALLBACKS", "Callbacks", "OnCheckpoint", "OnRecord", "call_callbacks"]

Record = Mapping[str, Any]
OnRecord = Callable[[Record], object]
OnCheckpoint = Callable[[Path], object]


def _check_callable(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise ConfigError(attribute.name, got=repr(value), need="a function, or None")


@frozen(kw_only=True)
class Callbacks:
    """Functions that are called after a step, in this order.

    on_step        with the record of the step: its number `step`, and its metrics
    on_evaluation  with the same record if the policy was evaluated or validated; also with that of step 0, before the
                   first step
    on_checkpoint  with the directory of a checkpoint that is complete: that of the step, or, with
                   `checkpoint.background`, of an earlier one

    `should_stop` is called before each step. If it returns true, a checkpoint is written and RunStoppedError is raised.

    All others are called when everything about the step is on disk: its record, its rollouts and its checkpoint, if it
    is not written in the background. They run in the process of the run, which waits for them. In an initial run only
    `should_stop` is called. A run that is resumed repeats the steps after its last checkpoint, with the same calls.
    """

    on_step: OnRecord | None = field(default=None, validator=_check_callable)
    on_evaluation: OnRecord | None = field(default=None, validator=_check_callable)
    on_checkpoint: OnCheckpoint | None = field(default=None, validator=_check_callable)
    should_stop: Callable[[], bool] = lambda: False


NO_CALLBACKS = Callbacks()


def call_callbacks(callbacks: Callbacks, record: Record | None, written: Sequence[Path]) -> None:
    """Call what is due after the step with this record, or after none, and for the checkpoints that were `written`."""
    if record is not None and callbacks.on_step is not None and record["step"] > 0:
        callbacks.on_step(dict(record))
    if record is not None and callbacks.on_evaluation is not None and any(map(is_measurement, record)):
        callbacks.on_evaluation(dict(record))
    if callbacks.on_checkpoint is not None:
        for path in written:
            callbacks.on_checkpoint(path)
