"""Metrics that settings name: a name that the run cannot have is refused before it starts, with the nearest one.

The names are those of docs/reference/metrics.md, with the terms of the algorithm's loss, the data sets and the rewards
of the run. A callback, a workflow, an environment or code of the user may add names of its own: these are checked when
there are records, in the run. Reward functions may name their components, so an unknown one has a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from purerl.algos.algebra import Algorithm
from purerl.config.suggestions import suggestion
from purerl.errors import ConfigError
from purerl.monitoring.metric_meanings import RESERVED_PREFIXES, documented_names, meanings
from purerl.rewards.components import RESERVED_NAMES
from purerl.settings import no_effect

__all__ = ["NamedMetrics", "check_names", "metric_notes"]

_MEASURED = {"evaluate": ("eval/", "an evaluation"), "validation": ("validation/", "a validation")}
_COMPONENT = re.compile(r"(?:eval/(?:[^/]+/)?)?reward/([^/]+)(?:/[^/]+)?")
_LOGGED = re.compile(r"(?:eval/(?:[^/]+/)?)?logged/.+")


class NamedMetrics(NamedTuple):
    """The metrics that settings name, and the parts of a run that decide which ones it has.

    by_key         metrics by the key of the setting
    filter_metric  the reward that `rollout.filter_metric` names
    rewards        the components that the rewards have by their own names
    data_sets      the data sets whose metrics have their names: all of them if there are several
    absent         those of the sections "evaluate" and "validation" that are not set
    has_own_code   whether code of the user, other than a reward function, may add metrics to records
    """

    by_key: Mapping[str, str]
    filter_metric: str | None
    rewards: Sequence[str]
    data_sets: Sequence[str]
    absent: Sequence[str]
    has_own_code: bool


def check_names(metrics: NamedMetrics, algorithm: Algorithm, *, may_log: bool) -> None:
    """Refuse a metric in `stop_when.metric` or `checkpoint.best` that a run of `algorithm` cannot have.

    `may_log`: whether callbacks may log metrics of their own. Raises: ConfigError, with the nearest name.
    """
    for key, metric in metrics.by_key.items():
        for section in metrics.absent:
            prefix, need = _MEASURED[section]
            if metric.startswith(prefix):
                setting = key.removesuffix(".metric")
                raise no_effect(setting, metric, need, f"set {section}, or leave {setting} out")
        do = suggestion(metric)
        is_open = not metric.startswith(RESERVED_PREFIXES) and (may_log or metrics.has_own_code)
        if do is None and (is_open or _is_known(metric, metrics, algorithm)):
            continue
        raise ConfigError(key, got=metric, need="a metric of the run", do=do or _nearest(metric, metrics, algorithm))


def metric_notes(metrics: NamedMetrics) -> list[str]:
    """A sentence about each setting that names a reward that the run does not have, unless a function returns it."""
    named = {key: match[1] for key, metric in metrics.by_key.items() if (match := _COMPONENT.fullmatch(metric))}
    notes = [_note(key, name, [*metrics.rewards, *RESERVED_NAMES]) for key, name in named.items()]
    if metrics.filter_metric is not None:
        notes.append(_note("rollout.filter_metric", metrics.filter_metric, metrics.rewards))
    return [note for note in notes if note and metrics.rewards]


def _note(key: str, name: str, known: Sequence[str]) -> str:
    if name in known:
        return ""
    found = get_close_matches(name, known, n=1, cutoff=0.6)
    do = f"did you mean {found[0]!r}?" if found else f"known are {', '.join(known)}"
    return f"{key}: no reward of the run is called {name!r}, unless a reward function returns this name; {do}"


def _is_known(metric: str, metrics: NamedMetrics, algorithm: Algorithm) -> bool:
    if _COMPONENT.fullmatch(metric) or _LOGGED.fullmatch(metric):
        return True
    if re.fullmatch(r"(?:policy|critic|reward_model)/loss/.+", metric):
        return metric in _terms(algorithm)
    parts = metric.split("/")
    if parts[0] == "eval" and len(parts) > 2 and parts[1] not in metrics.data_sets:
        return False
    return bool(meanings([metric]))


def _terms(algorithm: Algorithm) -> list[str]:
    objectives = (*algorithm.before, *algorithm.objectives)
    return [f"{objective.role}/loss/{term.name}" for objective in objectives for term in objective.terms]


def _nearest(metric: str, metrics: NamedMetrics, algorithm: Algorithm) -> str:
    found = get_close_matches(metric, [*_names(metrics, algorithm)], n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else "docs/reference/metrics.md lists all metrics"


def _names(metrics: NamedMetrics, algorithm: Algorithm) -> Iterator[str]:
    """The names that a remedy may suggest."""
    roles = {objective.role for objective in (*algorithm.before, *algorithm.objectives)}
    absent = tuple(_MEASURED[section][0] for section in metrics.absent)
    for name in documented_names():
        first, _, rest = name.partition("/")
        if not absent or not name.startswith(absent):
            yield from (f"{role}/{rest}" for role in (roles if first == "policy" else {first}))
            yield from (f"eval/{data_set}/{rest}" for data_set in metrics.data_sets if first == "eval")
    yield from _terms(algorithm)
    yield from (f"{prefix}reward/{name}" for name in metrics.rewards for prefix in ("", "eval/"))
