"""Apply the checks to a run, step by step or as a whole: which warnings are raised, and when they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from purerl.monitoring.warnings.checks import CHECKS
from purerl.monitoring.warnings.history import START, Facts, History, Record, add

__all__ = ["Episode", "RunWarning", "State", "diagnose", "initial", "observe"]


_END = 2  # times `Check.steps`: longer than the checks remember, so that a single good step does not end a warning


class RunWarning(NamedTuple):
    """A warning about a run.

    step   in which it was raised
    name   of the check, such as "entropy_collapse"
    text   what the metrics show
    cause  the likely cause
    do     what to try
    """

    step: int
    name: str
    text: str
    cause: str
    do: str

    @property
    def message(self) -> str:
        """All of it in one line."""
        return f"{self.text}. Likely cause: {self.cause}. Try: {self.do}."


class Episode(NamedTuple):
    """A warning with the step in which it ended; None if it is still present."""

    warning: RunWarning
    end: int | None


class State(NamedTuple):
    """The state of all checks: the history that they read, and by name the last step at which a raised one applied."""

    history: History
    present: Mapping[str, int] = MappingProxyType({})


def initial(facts: Facts) -> State:
    """The state before the first record."""
    return State(START._replace(facts=facts))


def observe(state: State, record: Record) -> tuple[State, tuple[RunWarning, ...]]:
    """Return the state after `record`, and the warnings that it raises.

    A warning is raised once. It is present until its check has not applied for 2 `Check.steps` steps in a row, and can
    then be raised again. The records are those of metrics.jsonl, in their order: the state after all of them is the
    same if they are read from the file of a resumed run.
    """
    step, history = record["step"], add(state.history, record)
    present: dict[str, int] = {}
    raised: list[RunWarning] = []
    for check in CHECKS:
        text, is_new = check.test(history), check.name not in state.present
        is_explained = is_new and not present.keys().isdisjoint(check.explained_by)
        if text is not None and not is_explained:
            present[check.name] = step
            raised += [RunWarning(step, check.name, text, check.cause, check.do)] if is_new else []
        elif check.name in state.present and step - state.present[check.name] < _END * check.steps:
            present[check.name] = state.present[check.name]
    return State(history, present), tuple(raised)


def diagnose(records: Iterable[Record], facts: Facts) -> list[Episode]:
    """All warnings of a run with these records, in the order in which they were raised."""
    state, episodes = initial(facts), dict[int, Episode]()
    open_episodes: dict[str, int] = {}
    for record in records:
        state, raised = observe(state, record)
        for name in [name for name in open_episodes if name not in state.present]:
            number = open_episodes.pop(name)
            episodes[number] = episodes[number]._replace(end=record["step"])
        for warning in raised:
            open_episodes[warning.name] = len(episodes)
            episodes[len(episodes)] = Episode(warning, None)
    return list(episodes.values())
