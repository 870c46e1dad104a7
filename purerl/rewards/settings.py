"""Settings of the sections `rewards`, `gates` and `reward_workers`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import attrs
from attrs import frozen

from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.rewards.components import short_name
from purerl.settings import at_least, setting, to_mib

__all__ = ["Gate", "Reward", "RewardWorkers", "by_name", "to_gates", "to_rewards"]


def _function_setting() -> Any:
    return setting("the function, as module:function or file.py:function", short=True, default=None)


def _config_setting() -> Any:
    return setting(
        "in place of a function: a kind, and its settings beside it", plugin="reward", inline=True, default=None
    )


def _name_setting() -> Any:
    return setting(
        "name of its component, if it should not be that of the function or kind",
        default=None,
        need="at most 100 letters, digits, spaces and characters of _ and -",
        valid=lambda value: isinstance(value, str) and re.fullmatch(r"[\w-]([\w -]{0,98}[\w-])?", value),
    )


@frozen
class Reward:
    """A reward: a function or a kind, and its weight.

    In settings a string stands for the function with that name, with weight 1. In Python, the Config of a kind stands
    for this kind.
    """

    function: str | None = _function_setting()
    weight: float = setting("factor of its value in the weighted sum; 0: the value is only logged", default=1.0)
    name: str | None = _name_setting()
    config: Any = _config_setting()

    def __attrs_post_init__(self) -> None:
        _check_source(self)
        if not math.isfinite(self.weight):
            raise ConfigError("weight", got=self.weight, need="a finite number")

    @property
    def full_name(self) -> str:
        """What identifies the reward in a run."""
        return _full_name(self)


@frozen
class Gate:
    """A function or a kind that decides whether a completion has a reward other than 0."""

    function: str | None = _function_setting()
    name: str | None = _name_setting()
    config: Any = _config_setting()

    def __attrs_post_init__(self) -> None:
        _check_source(self)

    @property
    def full_name(self) -> str:
        """What identifies the gate in a run."""
        return _full_name(self)


def _check_source(reward: Reward | Gate) -> None:
    if (reward.function is None) == (reward.config is None):
        got = "both" if reward.function else "neither"
        raise ConfigError("function or kind", got=got, need="exactly one of them")
    if reward.config is not None:
        find("reward", kind_of(reward.config))


def _full_name(reward: Reward | Gate) -> str:
    if reward.name is not None or reward.config is None:
        return reward.name or str(reward.function)
    return short_name(kind_of(reward.config).removesuffix(".py").replace("/", "."))


def to_rewards(values: Iterable[Any]) -> tuple[Reward, ...]:
    """Names of functions, and Configs of kinds, as the rewards that they stand for.

    >>> to_rewards(["module:function"])
    (Reward(function='module:function', weight=1.0, name=None, config=None),)
    """
    return tuple(value if isinstance(value, Reward) else Reward(**_source(value)) for value in values)


def to_gates(values: Iterable[Any]) -> tuple[Gate, ...]:
    """Names of functions, and Configs of kinds, as the gates that they stand for."""
    return tuple(value if isinstance(value, Gate) else Gate(**_source(value)) for value in values)


def _source(value: Any) -> dict[str, Any]:
    return {"config" if attrs.has(type(value)) else "function": value}


def by_name(rewards: Iterable[Reward], gates: Iterable[Gate]) -> dict[str, Reward | Gate]:
    """All functions and kinds by what identifies them. One that is both a reward and a gate is there once."""
    first: dict[str, Reward | Gate] = {}
    for each in (*rewards, *gates):
        first.setdefault(each.full_name, each)
    return first


@frozen(kw_only=True)
class RewardWorkers:
    """How reward functions are called, and how many failures are tolerated."""

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
        converter=to_mib,
        read=to_mib,
        **at_least(64),
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
