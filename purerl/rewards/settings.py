"""Settings of the sections `rewards`, `gates` and `reward_workers`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import attrs
from attrs import frozen
from attrs.converters import optional

from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.rewards.components import short_name
from purerl.settings import above_zero, at_least, no_effect, setting, size_at_least

__all__ = ["Gate", "Reward", "RewardWorkers", "by_name", "to_gates", "to_rewards"]


_FINITE = {"need": "a finite number", "valid": math.isfinite}


def to_names(value: Any) -> Any:
    """One name as a tuple of names; every other value is returned unchanged, and a list as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


# Settings of rewards and gates.
_function_setting = partial(setting, "the function, as module:function or file.py:function", short=True, default=None)
_role_setting = partial(setting, "in place of a function: a model, by its name in roles.rewards", default=None)
_kwargs_setting = partial(setting, "further arguments of each call of the function, by name", default=None)
_config_setting = partial(
    setting, "in place of a function: a kind, and its settings beside it", plugin="reward", inline=True, default=None
)
_name_setting = partial(
    setting,
    "name of its component, if it should not be that of the function, kind or model",
    default=None,
    need="at most 100 letters, digits, spaces and characters of _ and -",
    valid=lambda value: isinstance(value, str) and re.fullmatch(r"[\w-]([\w -]{0,98}[\w-])?", value),
)
_data_source_setting = partial(
    setting,
    "rows that it applies to: a value of their column data_source, or a list of values and patterns such as "
    "math_*; if not given, all rows",
    default=None,
    converter=optional(to_names),
    read=to_names,
    need="at least one name or pattern",
    valid=lambda value: bool(value) and all(value),
)


@frozen
class Reward:
    """A reward: a function, a kind or a model, and its weight.

    In settings a string stands for the function with that name, with weight 1. In Python, the Config of a kind stands
    for this kind.
    """

    function: str | None = _function_setting()
    weight: float = setting("factor of its value in the weighted sum; 0: the value is only logged", default=1.0)
    kwargs: Mapping[str, Any] | None = _kwargs_setting()
    name: str | None = _name_setting()
    data_source: tuple[str, ...] | None = _data_source_setting()
    mean: float | None = setting(
        "subtracted from its value, such as the mean of the scores of a reward model", default=None, **_FINITE
    )
    std: float | None = setting(
        "what its value minus the mean is divided by, such as the standard deviation of these scores",
        default=None,
        **above_zero(),
    )
    clip: tuple[float, float] | None = setting(
        "smallest and largest value, after the mean and the standard deviation and before the weight",
        default=None,
        converter=optional(tuple),
        need="two finite numbers, the smaller one first",
        valid=lambda value: math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1],
    )
    config: Any = _config_setting()
    role: str | None = _role_setting()

    def __attrs_post_init__(self) -> None:
        _check_source(self)
        if not math.isfinite(self.weight):
            raise ConfigError("weight", got=self.weight, need="a finite number")

    def contribution(self, value: float) -> float:
        """The term of a component with this value in the reward.

            contribution = weight * clip((value - mean) / std, low, high)

        >>> Reward("m:f", weight=0.5, mean=1.0, std=2.0, clip=(-1.0, 1.0)).contribution(9.0)
        0.5
        """
        value = (value - (self.mean or 0.0)) / (self.std or 1.0)
        return self.weight * (value if self.clip is None else min(max(value, self.clip[0]), self.clip[1]))

    @property
    def full_name(self) -> str:
        """The identity of the reward in a run."""
        return _full_name(self)


@frozen
class Gate:
    """A function, a kind or a model that decides whether a completion has a reward other than 0."""

    function: str | None = _function_setting()
    at_least: float = setting("the reward is 0 if its value is less than this", default=1.0, **_FINITE)
    kwargs: Mapping[str, Any] | None = _kwargs_setting()
    name: str | None = _name_setting()
    data_source: tuple[str, ...] | None = _data_source_setting()
    config: Any = _config_setting()
    role: str | None = _role_setting()

    def __attrs_post_init__(self) -> None:
        _check_source(self)

    @property
    def full_name(self) -> str:
        """The identity of the gate in a run."""
        return _full_name(self)


def _check_source(reward: Reward | Gate) -> None:
    sources = {"function": reward.function, "kind": reward.config, "role": reward.role}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise ConfigError("function, kind or role", got=got, need="exactly one of them")
    if reward.function is None and reward.kwargs is not None:
        raise no_effect("kwargs", dict(reward.kwargs), "a function; kinds and models have settings")
    if reward.config is not None:
        find("reward", kind_of(reward.config))


def _full_name(reward: Reward | Gate) -> str:
    if reward.name is not None or reward.config is None:
        return reward.name or reward.role or str(reward.function)
    return short_name(kind_of(reward.config).removesuffix(".py").replace("/", "."))


def to_rewards(values: Iterable[Any]) -> tuple[Reward, ...]:
    """Names of functions, and Configs of kinds, as the rewards that they stand for.

    >>> to_rewards(["module:function"])  # doctest: +ELLIPSIS
    (Reward(function='module:function', weight=1.0, kwargs=None, ...),)
    """
    return tuple(value if isinstance(value, Reward) else Reward(**_source(value)) for value in values)


def to_gates(values: Iterable[Any]) -> tuple[Gate, ...]:
    """Names of functions, and Configs of kinds, as the gates that they stand for."""
    return tuple(value if isinstance(value, Gate) else Gate(**_source(value)) for value in values)


def _source(value: Any) -> dict[str, Any]:
    return {"config" if attrs.has(type(value)) else "function": value}


def by_name(rewards: Iterable[Reward], gates: Iterable[Gate]) -> dict[str, Reward | Gate]:
    """All functions, kinds and models by what identifies them. One that is both a reward and a gate is there once."""
    first: dict[str, Reward | Gate] = {}
    for each in (*rewards, *gates):
        first.setdefault(each.full_name, each)
    return first


@frozen(kw_only=True)
class RewardWorkers:
    """Calls of reward functions, and the number of failures that are tolerated."""

    timeout: float = setting(
        "maximum duration of one call of a reward function", unit="s", default=10.0, may_change=True
    )
    num_workers: int | None = setting(
        "number of worker processes, divided among the ranks of a host; if not given, the number of cores, at most 8",
        default=None,
        may_change=True,
        **at_least(1),
    )
    max_memory: int | None = setting(
        "maximum memory of each worker process, and of each process that it starts: a number of MiB, or a size such as "
        '"2GB" or "512MiB". If not given, there is no limit',
        unit="MiB",
        default=None,
        may_change=True,
        **size_at_least(64),
    )
    max_failure_rate: float = setting(
        "maximum fraction of the samples of a step, or of an evaluation, that may be missing because a reward "
        "function, an environment or the engine failed. Up to 3 failures are always tolerated, but on at most half of "
        "the samples; with 0, none is",
        default=0.1,
        may_change=True,
    )

    def __attrs_post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigError("timeout", got=self.timeout, need="above 0, and finite")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError("max_failure_rate", got=self.max_failure_rate, need="from 0 to 1")
