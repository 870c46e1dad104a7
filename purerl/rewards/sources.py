"""Sources of rewards: functions by their address, and kinds with their settings.

A kind is a plugin of the group "reward", a module with

    Config                a frozen attrs class with its settings
    build(config)         returns a reward function of any calling convention, sync or async. It is called once in each
                          worker process, outside of any timeout. The function may be an object with a method `close`,
                          or an async method `aclose`, which is called when the run ends
    check(config)         optional; raises ConfigError for what can be seen before the run, such as a missing library
    check_running(config) optional; raises ConfigError if a server that it asks does not answer. It is called before
                          models are loaded, and not in a dry run
    check_images(config)  optional; raises ConfigError if it cannot score completions of prompts with images
    columns(config)       optional; the columns of the data that it reads: names, and tuples of names of which one is
                          needed
    seconds(config)       optional; how long a call may take, in place of `reward_workers.timeout`
    row_check(config)     optional; a function of a row of the data, or None. It raises ValueError, KeyError or
                          TypeError if no completion of the row can be scored, as for `checked_by`
    data_sources(config)  optional; the rows that it is for, as names and patterns in their column `data_source`
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from attrs import evolve

from purerl.errors import ConfigError, similar
from purerl.plugins import find, kind_of
from purerl.rewards.adapters import LoadedReward, RewardFunction, RowCheck
from purerl.rewards.loading import alternative_columns, as_reward, load_reward, name_of, required_columns
from purerl.rewards.settings import Gate, Reward, to_gates, to_rewards
from purerl.settings import in_section

__all__ = [
    "Source",
    "as_alternatives",
    "check_columns",
    "check_images",
    "check_running",
    "columns_of",
    "columns_of_kind",
    "load",
    "named_functions",
    "row_check_of_kind",
    "seconds_of",
    "source_of",
]


class Source(NamedTuple):
    """The address and the settings that a worker process loads.

    name     of the reward
    address  of a function, or the name of a kind
    config   the settings of the kind; None for a function
    kwargs   further arguments of each call of the function
    """

    name: str
    address: str
    config: Any = None
    kwargs: Mapping[str, Any] | None = None


def source_of(reward: Reward | Gate) -> Source:
    """The source of `reward`."""
    if reward.config is None:
        return Source(reward.full_name, str(reward.function), kwargs=reward.kwargs)
    return Source(reward.full_name, kind_of(reward.config), reward.config)


def load(source: Source) -> LoadedReward:
    """The reward function of `source`. Of a kind, it is built.

    Raises: ConfigError if there is no such function, or if it follows no convention; and what `build` raises.
    """
    if source.config is None:
        return load_reward(source.address, source.kwargs)._replace(name=source.name)
    return as_reward(source.name, find("reward", source.address).build(source.config))


def seconds_of(source: Source, timeout: float) -> float:
    """The longest time of a call of `source`: that of its kind, or `timeout`."""
    seconds = None if source.config is None else getattr(find("reward", source.address), "seconds", None)
    return timeout if seconds is None else seconds(source.config)


def named_functions(
    rewards: Iterable[Any], gates: Iterable[Any]
) -> tuple[tuple[Reward, ...], tuple[Gate, ...], dict[str, RewardFunction]]:
    """`rewards` and `gates` with names in place of functions, and these functions by the name of their reward.

    Raises: ConfigError if different functions have the same name.
    """
    functions: dict[str, RewardFunction] = {}

    def named(reward: Any) -> Any:
        function = reward.function
        if not callable(function):
            return reward
        reward = evolve(reward, function=name_of(function))
        if functions.setdefault(reward.full_name, function) is not function:
            do = "give them different names, with def, or with Reward(function, name=...)"
            raise ConfigError("rewards", got=f"two functions called {reward.full_name!r}", do=do)
        return reward

    return tuple(map(named, to_rewards(rewards))), tuple(map(named, to_gates(gates))), functions


def columns_of(reward: LoadedReward) -> list[tuple[str, ...]]:
    """The columns that `reward` needs, as far as they are known: of each tuple at least one."""
    alternatives = alternative_columns(reward)
    return [*((name,) for name in required_columns(reward)), *([alternatives] if alternatives else [])]


def columns_of_kind(config: Any) -> list[tuple[str, ...]]:
    """The columns that the kind of reward with the Config `config` needs, as `columns_of`."""
    columns: Iterable[str | tuple[str, ...]] = getattr(find("reward", kind_of(config)), "columns", lambda _: ())(config)
    return as_alternatives(columns)


def row_check_of_kind(config: Any) -> RowCheck | None:
    """The check of a row that the kind of reward with the Config `config` has; None without one."""
    return getattr(find("reward", kind_of(config)), "row_check", lambda _: None)(config)


def check_running(name: str, config: Any) -> None:
    """Raise ConfigError if a server that the kind of reward with the Config `config` asks does not answer."""
    check = getattr(find("reward", kind_of(config)), "check_running", None)
    if check is not None:
        with in_section(f"reward {name!r}", type(config)):
            check(config)


def check_images(name: str, config: Any) -> None:
    """Raise ConfigError if the kind of reward with the Config `config` cannot score prompts with images."""
    check = getattr(find("reward", kind_of(config)), "check_images", None)
    if check is not None:
        with in_section(f"reward {name!r}: config", type(config)):
            check(config)


def as_alternatives(columns: Iterable[str | tuple[str, ...]]) -> list[tuple[str, ...]]:
    """`columns` with a tuple of one name in place of each name."""
    return [(name,) if isinstance(name, str) else name for name in columns]


def check_columns(name: str, needed: Iterable[tuple[str, ...]], columns: Collection[str]) -> None:
    """Raise ConfigError if `columns` has none of one of the tuples that the reward called `name` needs."""
    missing = [alternatives for alternatives in needed if not {*alternatives} & {*columns}]
    if missing:
        what = f"reward {name!r} reads columns that the data set does not have"
        near = {name: each for names in missing for name in names if (each := similar(name, columns))}
        do = "rename a column of the data set, or use another reward function"
        if near:
            do = "; ".join(f"set data.columns.{name} = {each!r}" for name, each in near.items())
        raise ConfigError(what, got=", ".join(columns), need=f"also {', '.join(map(' or '.join, missing))}", do=do)
