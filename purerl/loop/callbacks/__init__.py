"""Functions of the caller that a run calls after its steps."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Attribute, define, field, frozen

from purerl.errors import ConfigError
from purerl.evaluation.problem_results import is_measurement
from purerl.loop.callbacks.control import Control, Requests
from purerl.loop.callbacks.prompt_sampler import PromptSampler
from purerl.loop.run import Run
from purerl.store.directory import RunDirectory
from purerl.store.records import to_record

__all__ = ["NO_CALLBACKS", "CallbackCalls", "Callbacks", "OnCheckpoint", "OnRecord", "open_calls"]

Record = Mapping[str, Any]
OnRecord = Callable[[Record, Control], object]
OnCheckpoint = Callable[[Path, Control], object]

_NOTHING = Requests({})

_LOG = logging.getLogger(__name__)


def _check_callable(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is None:
        return
    first = "path" if attribute.name == "on_checkpoint" else "record"
    need = f"a function of two arguments, ({first}, control), or None"
    if not callable(value):
        raise ConfigError(attribute.name, got=repr(value), need=need)
    try:
        inspect.signature(value).bind(None, None)
    except ValueError:  # a builtin without a signature
        return
    except TypeError as error:
        raise ConfigError(attribute.name, got=f"{value!r}: {error}", need=need) from error


@frozen(kw_only=True)
class Callbacks:
    """Functions that are called after a step, in this order. Each gets a `Control` as its second argument.

    on_step        with the record of the step: its number `step`, and its metrics
    on_evaluation  with the same record if the policy was evaluated or validated; also with that of step 0, before the
                   first step
    on_checkpoint  with the directory of a checkpoint that is complete: that of the step, or, with
                   `checkpoint.background`, of an earlier one

    `should_stop` is called before each step, on every rank. If it returns true on one of them, a checkpoint is written
    and RunStoppedError is raised: the run can be resumed. `Control.stop` ends a run.

    The others are called on rank 0, in the main thread, while the other ranks wait. The record of a step is written
    after `on_evaluation`, and its checkpoint after that. In an initial run only `should_stop` is called. A run that is
    resumed repeats the steps after its last checkpoint, with the same calls.
    """

    on_step: OnRecord | None = field(default=None, validator=_check_callable)
    on_evaluation: OnRecord | None = field(default=None, validator=_check_callable)
    on_checkpoint: OnCheckpoint | None = field(default=None, validator=_check_callable)
    should_stop: Callable[[], bool] = lambda: False

    @property
    def may_log(self) -> bool:
        """Whether metrics may be logged by these functions."""
        return any(each is not None for each in (self.on_step, self.on_evaluation, self.on_checkpoint))


NO_CALLBACKS = Callbacks()


@define
class CallbackCalls:
    """Calls `callbacks` on rank 0, and returns what they have requested.

    Requests of `on_checkpoint` are kept for the next step, whose record is not written yet.
    """

    callbacks: Callbacks
    directory: RunDirectory
    sampler: PromptSampler
    can_evaluate: bool
    _later: Requests = field(default=_NOTHING, init=False)

    def after_step(self, record: Record, shown: Record) -> tuple[dict[str, Any], Requests]:
        """Call `on_step`; return `record` with the metrics that were logged, and the requests.

        `shown` is the record for the callback, with the times so far.
        """
        later, self._later = self._later, _NOTHING
        return self._call(self.callbacks.on_step, record, shown, later)

    def after_evaluation(self, record: Record, shown: Record) -> tuple[dict[str, Any], Requests]:
        """As `after_step`, for `on_evaluation` if `record` has an evaluation or a validation."""
        function = self.callbacks.on_evaluation if any(map(is_measurement, record)) else None
        return self._call(function, record, shown, _NOTHING)

    def after_checkpoints(self, record: Record, written: Sequence[Path]) -> None:
        """Call `on_checkpoint` for each of `written`, after the step with this `record`."""
        function = self.callbacks.on_checkpoint
        if function is None or not written:
            return
        control = self._control(record, self._later)
        for path in written:
            function(path, control)
        self._later = control.requests

    def warn_of_lost_requests(self) -> None:
        """Warn if requests remain after the last step."""
        if self._later != _NOTHING:
            _LOG.warning("requests of on_checkpoint after the last step have no effect: no step follows")

    def _call(
        self, function: OnRecord | None, record: Record, shown: Record, later: Requests
    ) -> tuple[dict[str, Any], Requests]:
        control = self._control(shown, later)
        if function is not None:
            function(dict(shown), control)
        return to_record({**record, **control.requests.metrics}, self.directory.path), control.requests

    def _control(self, record: Record, later: Requests) -> Control:
        return Control(
            record["step"],
            record=record,
            read_past=self.directory.records,
            sampler=self.sampler,
            can_evaluate=self.can_evaluate,
            requests=later,
        )


def open_calls(callbacks: Callbacks, sampler: PromptSampler, run: Run, directory: RunDirectory) -> CallbackCalls:
    """The calls of `callbacks` in `run`, in `directory`; on a rank without the directory none."""
    called = callbacks if directory.is_owner else NO_CALLBACKS
    return CallbackCalls(called, directory, sampler, bool(run.measures.evaluations_due(0, is_last=True)))
