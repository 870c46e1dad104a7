"""The end of a step: its evaluations, and the requests of callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from purerl.loop.callbacks import CallbackCalls
from purerl.loop.callbacks.control import Requests
from purerl.loop.measure import Measures
from purerl.loop.state import Clock, Ending, LoopState
from purerl.ranks import Ranks
from purerl.store.records import to_record

__all__ = ["StepEnd"]

Record = dict[str, Any]


@frozen
class StepEnd:
    """Evaluates after steps, and calls callbacks on rank 0. All ranks call it, and get what rank 0 has decided."""

    measures: Measures
    calls: CallbackCalls
    ending: Ending
    ranks: Ranks

    def report(self, record: Callable[[], Record], timed: Callable[[Record], Record]) -> tuple[Record, Requests]:
        """The `record` of a step on rank 0 with the metrics of `on_step`, and its requests.

        timed  adds the times so far, for the callback
        """

        def call() -> tuple[Record, Requests]:
            metrics = record()
            return self.calls.after_step(metrics, timed(metrics))

        return self.ranks.on_first(call, "the metrics of a step")

    def evaluate(
        self,
        state: LoopState,
        record: Record,
        clock: Clock,
        *,
        timed: Callable[[Record], Record] = dict,
        everything: bool = False,
    ) -> tuple[Record, Requests]:
        """`record` with the metrics of what is due after `state` and those of `on_evaluation`, and its requests.

        If the run ends after this step, or with `everything`, everything is due that can be measured.
        """
        names = self.measures.evaluations_due(state.step, is_last=True)
        due = names if everything or self.ending.is_over(record) else self.measures.evaluations_due(state.step)
        record = self._measured(state, record, due, clock)
        if self.ending.is_over(record):  # by a metric of an evaluation
            record, due = self._measured(state, record, _without(names, due), clock), names
        if not due:
            return record, Requests({})
        before = record
        record, asked = self.ranks.on_first(
            lambda: self.calls.after_evaluation(before, timed(before)), "the metrics of an evaluation"
        )
        if asked.evaluate or self.ending.is_over(record):
            record = self._measured(state, record, _without(names, due), clock)
        return record, asked

    def _measured(self, state: LoopState, record: Record, names: Sequence[str], clock: Clock) -> Record:
        metrics = self.measures.run_evaluations(state, names, clock)
        return {**record, **to_record(metrics, self.calls.directory.path)}


def _without(names: Sequence[str], done: Sequence[str]) -> list[str]:
    return [name for name in names if name not in done]
