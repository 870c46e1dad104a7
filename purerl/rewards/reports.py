"""Checks of what a worker process sends: it runs code of users and of models, which may change anything."""

from __future__ import annotations

from collections.abc import Mapping

from purerl.errors import EngineError
from purerl.rewards.components import is_valid_number, to_components
from purerl.rewards.jobs import Task
from purerl.rewards.outcomes import Failure, Logged, Outcome
from purerl.rewards.worker import Loaded, Report

__all__ = ["check_loaded", "check_report"]


def check_loaded(loaded: Loaded, functions: Mapping[str, object]) -> None:
    """Raise EngineError if `loaded` is not about `functions`, by their names."""
    if {*loaded.max_inputs} != {*functions} or min(loaded.max_inputs.values()) < 1:
        got, need = f"{loaded.max_inputs!r:.200}", f"a positive number for each of {', '.join(functions)}"
        raise EngineError("the functions of a worker process", got=got, need=need)


def check_report(report: Report, task: Task) -> None:
    """Raise EngineError if `report` cannot be the result of `task`."""
    if report.called is not None and not 1 <= report.called <= task.num_inputs:
        got, need = f"{report.called!r:.50} calls", f"at least 1, and at most {task.num_inputs}"
        raise EngineError("a report of a worker process", got=got, need=need)
    if not task.has_parts(report.outcomes):
        got = f"outcomes of {[*report.outcomes]!r:.200}"
        raise EngineError("a report of a worker process", got=got, need="outcomes of inputs of its task")
    for outcome in report.outcomes.values():
        try:
            _check_outcome(task.function, outcome)
        except ValueError as error:
            raise EngineError("a report of a worker process", got=f"{outcome!r:.200}", need=str(error)) from None


def _check_outcome(function: str, outcome: Outcome) -> None:
    """Raise ValueError if `outcome`, which has the right type, has values that no function can have returned."""
    if isinstance(outcome, Logged):
        to_components(function, outcome.totals)
        if not all(is_valid_number(total) and count >= 1 for total, count in outcome.metrics.values()):
            raise ValueError("metrics with finite sums of at least one value")
        outcome = outcome.outcome
    if outcome is not None and not isinstance(outcome, Failure):
        to_components(function, outcome)
