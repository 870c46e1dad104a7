"""Metrics that settings name: a name that the run cannot have is refused before it starts, with the nearest one.

The names are those of docs/reference/metrics.md, with the terms of the algorithm's loss, the data sets and the rewards
of the run. A callback, a workflow, an environment or code of the user may add names of its own: these are checked when
there are records, in the run. Reward functions may name their components, so an unknown one has a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from purerl.algos.algebra import Algorithm
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.config.suggestions import suggestion
from purerl.errors import ConfigError
from purerl.monitoring.metric_meanings import RESERVED_PREFIXES, documented_names, meanings
from purerl.rewards.components import RESERVED_NAMES, short_name
from purerl.settings import in_section, no_effect

__all__ = ["check_all_metrics", "check_metrics", "metric_notes"]

_MEASURED = {"eval/": ("evaluate", "an evaluation"), "validation/": ("validation", "a validation")}
_COMPONENT = re.compile(r"(?:eval/(?:[^/]+/)?)?reward/([^/]+)(?:/[^/]+)?")
_LOGGED = re.compile(r"(?:eval/(?:[^/]+/)?)?logged/.+")


def check_metrics(config: RunConfig, algorithm: Algorithm, *, may_log: bool) -> None:
    """Refuse a metric in `stop_when.metric` or `checkpoint.best` that the run cannot have.

    `may_log`: whether callbacks may log metrics of their own. Raises: ConfigError, with the nearest name.
    """
    for key, metric in _metrics_of(config).items():
        for prefix, (section, need) in _MEASURED.items():
            if metric.startswith(prefix) and getattr(config, section) is None:
                setting = key.removesuffix(".metric")
                raise no_effect(setting, metric, need, f"set {section}, or leave {setting} out")
        do = suggestion(metric)
        is_open = not metric.startswith(RESERVED_PREFIXES) and (may_log or _has_own_code(config))
        if do is None and (is_open or _is_known(metric, config, algorithm)):
            continue
        raise ConfigError(key, got=metric, need="a metric of the run", do=do or _nearest(metric, config, algorithm))


def check_all_metrics(config: RunConfig, needs: Mapping[str, Requirements], *, may_log: bool) -> None:
    """`check_metrics` of a run and of its initial run, in which no callback logs; `needs` as of `check_settings`."""
    for key, each in needs.items():
        with in_section(key, RunConfig):
            check_metrics(getattr(config, key) if key else config, each.algorithm, may_log=may_log and not key)


def metric_notes(config: RunConfig) -> list[str]:
    """A sentence about each setting that names a reward that the run does not have, unless a function returns it."""
    known = _reward_names(config)
    named = {key: match[1] for key, metric in _metrics_of(config).items() if (match := _COMPONENT.fullmatch(metric))}
    notes = [_note(key, name, [*known, *RESERVED_NAMES]) for key, name in named.items()]
    if config.rollout is not None and config.rollout.filter_metric is not None:
        notes.append(_note("rollout.filter_metric", config.rollout.filter_metric, known))
    return [note for note in notes if note and known]


def _metrics_of(config: RunConfig) -> dict[str, str]:
    metrics = {"stop_when.metric": config.stop_when and config.stop_when.metric}
    metrics |= {"checkpoint.best": config.checkpoint.best}
    return {key: metric for key, metric in metrics.items() if metric}


def _has_own_code(config: RunConfig) -> bool:
    """Whether code of the user, other than a reward function, may add metrics to records."""
    composition = config.algorithm
    parts = (composition.base, *composition.modifiers, config.trainer, config.generator)
    is_own = any(part is not None and not type(part).__module__.startswith("purerl.") for part in parts)
    return is_own or config.environment is not None or (config.rollout is not None and bool(config.rollout.workflow))


def _is_known(metric: str, config: RunConfig, algorithm: Algorithm) -> bool:
    if _COMPONENT.fullmatch(metric) or _LOGGED.fullmatch(metric):
        return True
    if re.fullmatch(r"(?:policy|critic|reward_model)/loss/.+", metric):
        return metric in _terms(algorithm)
    parts = metric.split("/")
    if parts[0] == "eval" and len(parts) > 2 and parts[1] not in _data_sets(config):
        return False
    return bool(meanings([metric]))


def _data_sets(config: RunConfig) -> list[str]:
    """The data sets whose metrics have their name: all of them if there are several."""
    data: Mapping[str, Any] = config.evaluate.data if config.evaluate else {}
    return [*data] if len(data) > 1 else []


def _terms(algorithm: Algorithm) -> list[str]:
    objectives = (*algorithm.before, *algorithm.objectives)
    return [f"{objective.role}/loss/{term.name}" for objective in objectives for term in objective.terms]


def _nearest(metric: str, config: RunConfig, algorithm: Algorithm) -> str:
    found = get_close_matches(metric, [*_names(config, algorithm)], n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}?" if found else "docs/reference/metrics.md lists all metrics"


def _names(config: RunConfig, algorithm: Algorithm) -> Iterator[str]:
    """The names that a remedy may suggest."""
    roles = {objective.role for objective in (*algorithm.before, *algorithm.objectives)}
    absent = tuple(prefix for prefix, (section, _) in _MEASURED.items() if getattr(config, section) is None)
    documented = [name for name in documented_names() if not name.startswith(absent or ("\n",))]
    for name in documented:
        first, _, rest = name.partition("/")
        yield from (f"{role}/{rest}" for role in (roles if first == "policy" else {first}))
        yield from (f"eval/{data_set}/{rest}" for data_set in _data_sets(config) if first == "eval")
    yield from _terms(algorithm)
    yield from (f"{prefix}reward/{name}" for name in _reward_names(config) for prefix in ("", "eval/"))


# --- rewards ------------------------------------------------------------------------------------------------------


def _reward_names(config: RunConfig) -> list[str]:
    """The components that the rewards of the run have by their own names."""
    return [short_name(each.full_name) for each in (*config.rewards, *config.gates)]


def _note(key: str, name: str, known: list[str]) -> str:
    if name in known:
        return ""
    found = get_close_matches(name, known, n=1, cutoff=0.6)
    do = f"did you mean {found[0]!r}?" if found else f"known are {', '.join(known)}"
    return f"{key}: no reward of the run is called {name!r}, unless a reward function returns this name; {do}"
