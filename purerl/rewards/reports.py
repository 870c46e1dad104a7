"""Checks of what a worker process sends: it runs code of users and of models, which may change anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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
    numbers = [*_numbers(report.outcomes.values())]
    try:
        to_components(task.function, dict.fromkeys({name for each in numbers for name in each}, 0.0))
    except ValueError as error:
        raise EngineError("a report of a worker process", got=str(error), need="names of components") from None
    logged = [outcome for outcome in report.outcomes.values() if isinstance(outcome, Logged)]
    metrics = [metric for outcome in logged for metric in outcome.metrics.values()]
    if not all(is_valid_number(total) and count >= 1 for total, count in metrics):
        raise EngineError("a report of a worker process", got=f"{metrics!r:.200}", need="finite sums of values")
    if not all(is_valid_number(number) for each in numbers for number in each.values()):
        raise EngineError("a report of a worker process", got=f"{numbers!r:.200}", need="finite numbers")


def _numbers(outcomes: Iterable[Outcome]) -> Iterator[Mapping[str, float]]:
    for outcome in outcomes:
        value = outcome
        if isinstance(outcome, Logged):
            yield outcome.totals
            value = outcome.outcome
        if value is not None and not isinstance(value, Failure | Logged):
            yield value
