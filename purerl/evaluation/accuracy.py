"""Correct completions: one reward function decides, the same for every metric of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache

from purerl.errors import ConfigError, RewardError, nearest
from purerl.evaluation.settings import Evaluate
from purerl.rewards.components import short_name
from purerl.rewards.results import RewardResult
from purerl.rollouts.episode_rows import ENVIRONMENT
from purerl.settings import no_effect

__all__ = ["describe_accuracy", "describe_components", "is_correct", "select_accuracy_rewards"]

ROUNDING = 1e-6
"""The distance below 1 that a value may have, because a sum of rewards such as 0.1 is rounded."""

_KEY = "evaluate.accuracy_reward"
_WITH_COMPONENT = re.compile(r"(?P<function>.+)\[(?P<component>[^\[\]]+)\]")


def select_accuracy_rewards(
    settings: Evaluate, names: Sequence[str], gates: Sequence[str] = (), models: Collection[str] = ()
) -> tuple[str, ...]:
    """The full names of the rewards of which the first one that applies decides whether a completion is correct.

    names   the rewards
    gates   further functions, which decide only if they are named, or if there is no reward
    models  those of `names` that are models: their scores need not say what is correct

    If `accuracy_reward` is set, it is the only one. Its name may end with one of its components: ``grade[correct]``.

    Raises: ConfigError if `accuracy_reward` is none of `names` and `gates`, or the short name of several.
    """
    selected, every = settings.accuracy_reward, [*names, *gates]
    if selected is None:
        return tuple(name for name in names if name not in models) or tuple(gates)
    if not every:
        raise no_effect(_KEY, selected, "reward functions, one of which decides what is correct")
    function, component = _parts(selected)
    matches = [name for name in every if name == function] or [name for name in every if short_name(name) == function]
    if not matches:
        known = nearest(function, {*every, *map(short_name, every)})
        raise ConfigError(_KEY, got=repr(selected), need="one of the reward functions or gates", do=known)
    if len(set(matches)) > 1:
        got, do = f"{selected!r}, the short name of several functions", f"use a full name: {' or '.join(matches)}"
        raise ConfigError(_KEY, got=got, need="one reward function or gate", do=do)
    return (matches[0] if component is None else f"{matches[0]}[{component}]",)


@cache
def _parts(name: str) -> tuple[str, str | None]:
    """A function and its component, or None, of ``function[component]``."""
    match = _WITH_COMPONENT.fullmatch(name)
    return (match["function"], match["component"]) if match else (name, None)


def is_correct(result: RewardResult, names: Sequence[str]) -> bool | None:
    """Whether the value of the first one of the functions `names` that applies is at least 1, up to rounding (1e-6).

    The value of a function is the component that its name ends with, or else its first component. That of an
    environment is the sum of its rewards in all turns; the components that it reports beside them do not count. None
    if there is no reward, or if no function applies.

    Raises: RewardError if a function does not give the component.

    >>> result = RewardResult({}, {"length": 0.5}, by_function={"m:grade": {"grade": 1.0, "format": 0.0}})
    >>> is_correct(result, ["m:grade"]), is_correct(result, ["m:grade[format]"])
    (True, False)
    """
    if result.reward is None:
        return None
    values = (value for name in names if (value := _value(name, result)) is not None)
    return next((value >= 1 - ROUNDING for value in values), None)


def _value(name: str, result: RewardResult) -> float | None:
    """The value of the function `name`, or None if it does not apply."""
    function, component = _parts(name)
    components = result.by_function.get(function, {})
    if component is None:
        return components.get(ENVIRONMENT) if function == ENVIRONMENT else next(iter(components.values()), None)
    if components and component not in components:
        what, got = f"{function!r} gives no component {component!r}, which {_KEY} names", ", ".join(components)
        raise RewardError(what, got=got, need="one of these", do=nearest(component, components))
    return components.get(component)


def describe_components(results: Iterable[RewardResult], names: Sequence[str]) -> str | None:
    """Say which component decides, if a function of `names` has several in `results` and its name ends with none.

    >>> result = RewardResult({}, {"length": 0.5}, by_function={"m:grade": {"format": 1.0, "correct": 0.0}})
    >>> print(describe_components([result], ["m:grade"]))
    accuracy: of the components format, correct of m:grade, the first one, format, decides; select another one with
    evaluate.accuracy_reward = "m:grade[correct]"
    """
    several = (
        (name, [*components])
        for result in results
        for name in names
        if name != ENVIRONMENT and len(components := result.by_function.get(name, {})) > 1
    )
    name, components = next(several, (None, []))
    if name is None:
        return None
    which = f"of the components {', '.join(components)} of {name}, the first one, {components[0]}, decides"
    return f'accuracy: {which}; select another one with\n{_KEY} = "{name}[{components[1]}]"'


def describe_accuracy(names: Sequence[str]) -> str | None:
    """A sentence that says when a completion is correct, if the first one of `names` that applies decides.

    None without any name.

    >>> describe_accuracy(["m:tagged"])
    'a completion is correct if m:tagged gives at least 1'
    >>> describe_accuracy(["m:grade[correct]"])
    'a completion is correct if the component correct of m:grade gives at least 1'
    >>> describe_accuracy(["environment"])
    'an episode is correct if the sum of the rewards of its environment is at least 1'
    """
    if not names:
        return None
    if names[0] == ENVIRONMENT:
        return "an episode is correct if the sum of the rewards of its environment is at least 1"
    function, component = _parts(names[0])
    if len(names) > 1:
        deciding = f"the first one of {', '.join(names)} that applies to its row"
    else:
        deciding = function if component is None else f"the component {component} of {function}"
    return f"a completion is correct if {deciding} gives at least 1"
