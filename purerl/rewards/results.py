"""The result of all rewards for one completion: the outcomes of functions, and scores, combined into one reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

from attrs import evolve, field, frozen

from purerl.rewards.components import added, is_valid_number, short_name
from purerl.rewards.outcomes import Failure, Logged, Outcome
from purerl.rewards.settings import Gate, Reward

__all__ = [
    "RewardResult",
    "added_metrics",
    "checked_sums",
    "combine",
    "component_columns",
    "component_names",
    "components_of",
    "fractions",
    "is_blocked",
    "logged_metrics",
    "reward_values",
]


@frozen
class RewardResult:
    """The combined result of all rewards for one completion.

    components           the value of each component, by name, without weights
    weighted_components  the contribution of each component to the reward; empty if there is no reward
    failure              the failure of the first reward function that failed, or None
    by_function          the components of each function, by its name; none of a function that does not apply to the
                         completion. Empty if a function failed or returned None
    totals               what functions measured, as ``<short name>/<name>``; also of those that failed
    metrics              what functions logged: the sum and the number of the values of each metric, by name
    columns              texts that functions logged for the table of completions, by the name of their column
    """

    components: Mapping[str, float] = field(factory=dict)
    weighted_components: Mapping[str, float] = field(factory=dict)
    failure: Failure | None = None
    by_function: Mapping[str, Mapping[str, float]] = field(factory=dict, eq=False)
    totals: Mapping[str, float] = field(factory=dict, eq=False)
    metrics: Mapping[str, tuple[float, int]] = field(factory=dict, eq=False)
    columns: Mapping[str, str] = field(factory=dict, eq=False)

    @property
    def reward(self) -> float | None:
        """The sum of `weighted_components`, or None if there is no reward."""
        return sum(self.weighted_components.values()) if self.weighted_components else None

    @property
    def is_inapplicable(self) -> bool:
        """Whether there is no reward because no function that gives rewards applies to the completion."""
        return self.reward is None and bool(self.by_function)


def combine(outcomes: Mapping[str, Outcome], rewards: Mapping[str, Reward], gates: Mapping[str, Gate]) -> RewardResult:
    """Combine the outcomes of all reward functions for one completion.

        reward = sum over functions f and their components c of contribution_f(c)    if every gate is open
                 0                                                                   otherwise

    The contribution of a component is `Reward.contribution`, in the simplest case its weight times the value. A gate is
    open if each of its components is at least `Gate.at_least`. Functions that are not in `rewards` contribute nothing.
    If a function failed or returned None, there is no reward. A function that does not apply to the completion, and a
    model that has not scored it yet, have an empty mapping as their outcome: they contribute nothing, and as gates they
    are open. If no function applies, there is no reward. A sum that float32 cannot hold is a failure.

    The values of components with equal names are added up. There is one exception: if several functions have the same
    short name, the component named after each of them gets the full name of its function.

    >>> outcomes = {"m:correct": {"correct": 1.0}, "m:short": {"short": 0.5}, "m:tagged": {"tagged": 1.0}}
    >>> rewards = {"m:correct": Reward("m:correct"), "m:short": Reward("m:short", weight=0.2)}
    >>> combine(outcomes, rewards, {"m:tagged": Gate("m:tagged")}).reward
    1.1
    >>> combine(outcomes | {"m:tagged": {"tagged": 0.0}}, rewards, {"m:tagged": Gate("m:tagged")}).reward
    0.0
    """
    if logged := {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Logged)}:
        without = {**outcomes, **{name: each.outcome for name, each in logged.items()}}
        return _with_logs(combine(without, rewards, gates), logged)
    values = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Mapping)}
    if len(values) < len(outcomes):
        failures = (outcome for outcome in outcomes.values() if isinstance(outcome, Failure))
        return RewardResult(failure=next(failures, None))
    own = component_names(tuple(outcomes))
    by_function: dict[str, Mapping[str, float]] = {
        name: outcome
        if own[name] in outcome
        else {own[name] if k == short_name(name) else k: outcome[k] for k in outcome}
        for name, outcome in values.items()
    }
    components: dict[str, float] = {}
    weighted_components: dict[str, float] = {}
    for name, outcome in by_function.items():
        for component, value in outcome.items():
            components[component] = components.get(component, 0.0) + value
            if name in rewards:
                contribution = rewards[name].contribution(value)
                weighted_components[component] = weighted_components.get(component, 0.0) + contribution
    if is_blocked(by_function, gates):
        weighted_components = dict.fromkeys(weighted_components, 0.0)
    return checked_sums(RewardResult(components, weighted_components, by_function=by_function))


def is_blocked(by_function: Mapping[str, Mapping[str, float]], gates: Mapping[str, Gate]) -> bool:
    """Whether a gate is closed, with these components of each function and model."""
    return any(value < gate.at_least for name, gate in gates.items() for value in by_function.get(name, {}).values())


def checked_sums(result: RewardResult) -> RewardResult:
    """`result`, or a failure if float32 cannot hold one of its components, or their weighted sum."""
    components, weighted_components = result.components, result.weighted_components
    if is_valid_number(sum(map(abs, (*components.values(), *weighted_components.values())))):
        return result
    sums = {**components, **weighted_components, "the weighted sum": result.reward or 0.0}
    too_large = [f"{name} is {value:g}" for name, value in sums.items() if not is_valid_number(value)]
    if not too_large:
        return result
    message = f"float32 cannot hold the sum: {', '.join(too_large)}\n"
    failure = Failure(", ".join(result.by_function), "returned an invalid value", message)
    return evolve(result, components={}, weighted_components={}, by_function={}, failure=failure)


def _with_logs(result: RewardResult, logged: Mapping[str, Logged]) -> RewardResult:
    totals = ({f"{short_name(name)}/{key}": v for key, v in each.totals.items()} for name, each in logged.items())
    return evolve(
        result,
        totals=added(*totals),
        metrics=added_metrics(each.metrics for each in logged.values()),
        columns={name: text for each in logged.values() for name, text in each.columns.items()},
    )


@cache
def component_names(names: tuple[str, ...]) -> Mapping[str, str]:
    """The component that is named after each function: its short name, or its full one if another has the same.

    >>> component_names(("m:length", "a.py:score", "b.py:score"))
    {'m:length': 'length', 'a.py:score': 'a.py:score', 'b.py:score': 'b.py:score'}
    """
    count = Counter(map(short_name, names))
    return {name: short_name(name) if count[short_name(name)] == 1 else name for name in names}


def added_metrics(metrics: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, tuple[float, int]]:
    """The sums and the numbers of values of all `metrics`, added up by name.

    >>> added_metrics([{"a": (1.0, 1)}, {"a": (2.0, 3), "b": (0.0, 1)}])
    {'a': (3.0, 4), 'b': (0.0, 1)}
    """
    total: dict[str, tuple[float, int]] = {}
    for name, (value, count) in (item for each in metrics for item in each.items()):
        before, counted = total.get(name, (0.0, 0))
        total[name] = (before + value, counted + count)
    return total


def logged_metrics(results: Iterable[RewardResult]) -> dict[str, float]:
    """The mean of each metric that functions logged, as ``logged/<name>``."""
    totals = added_metrics(result.metrics for result in results)
    return {f"logged/{name}": total / count for name, (total, count) in totals.items()}


def component_columns(results: Sequence[RewardResult]) -> list[dict[str, float | str | None]]:
    """The value of every component of `results` in each of them, as ``reward/<component>``; None if it has none.

    Likewise the texts that functions logged, as ``logged/<column>``.
    """
    names = dict.fromkeys(name for result in results for name in result.components)
    columns = dict.fromkeys(name for result in results for name in result.columns)
    return [
        {f"reward/{name}": result.components.get(name) for name in names}
        | {f"logged/{name}": result.columns.get(name) for name in columns}
        for result in results
    ]


def reward_values(result: RewardResult) -> dict[str, float]:
    """The reward, and the value of each component as ``reward/<component>``; empty if there is no reward.

    >>> reward_values(RewardResult({"exact": 1.0, "short": 0.5}, {"exact": 1.0, "short": 0.25}))
    {'reward': 1.25, 'reward/exact': 1.0, 'reward/short': 0.5}
    """
    if result.reward is None:
        return {}
    return {"reward": result.reward} | {f"reward/{name}": value for name, value in result.components.items()}


def fractions(results: Sequence[RewardResult]) -> dict[str, float]:
    """Metrics of `results`, as fractions of all completions.

    valid_fraction  completions that have a reward
    failed          completions for which a reward function failed
    timed_out       completions for which it failed because of the timeout
    """
    kinds = [result.failure.kind for result in results if result.failure]
    counts = {
        "valid_fraction": sum(result.reward is not None for result in results),
        "failed": len(kinds),
        "timed_out": kinds.count("timed out"),
    }
    return {name: count / len(results) for name, count in counts.items()}


def components_of(results: Sequence[RewardResult], rewards: Mapping[str, str]) -> list[list[float]]:
    """The weighted reward components of each of `results`, in one order for all: that of `rewards`.

    `rewards` are the names of the reward functions, each with that of its own component. A component that a row does
    not have is NaN, and so is that of a function that applies to none of the rows. Components of others come first.
    """
    known = dict.fromkeys(name for result in results for name in result.weighted_components)
    found = {function: _names_of(function, results) or [own] for function, own in rewards.items()}
    of_rewards = dict.fromkeys(chain.from_iterable(found.values()))
    names = [*(name for name in known if name not in of_rewards), *of_rewards]
    return [[result.weighted_components.get(name, math.nan) for name in names] for result in results]


def _names_of(function: str, results: Sequence[RewardResult]) -> list[str]:
    return [*dict.fromkeys(name for result in results for name in result.by_function.get(function, ()))]
