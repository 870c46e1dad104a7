"""Calling reward functions: in this process, one completion at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from purerl.errors import ConfigError, RewardError
from purerl.plugins import locate

__all__ = ["Reward", "judge", "load_reward", "name_of"]

_REWARD = "a number, a mapping of names to numbers, or None"

Reward = Callable[[str, Mapping[str, Any]], float | Mapping[str, float] | None]


def load_reward(name: str) -> Reward:
    """The function that ``module:function`` names. Raises ConfigError where there is none."""
    found: Reward = locate(name)
    if not callable(found):
        raise ConfigError(f"reward {name!r}", got=type(found).__name__, need="a function (completion, example)")
    return found


def name_of(reward: Reward) -> str:
    """How a run's configuration names a reward that was given as an object."""
    return f"{reward.__module__}:{getattr(reward, '__qualname__', type(reward).__qualname__)}"


def judge(rewards: Sequence[Reward], completion: str, example: Mapping[str, Any]) -> dict[str, float] | None:
    """The components of a completion's reward, which is their sum; None where one of `rewards` cannot tell.

    A number is a component named after its function; a function may name several by returning a mapping.

    Raises: RewardError where a function raises, or returns anything else.
    """
    components: dict[str, float] = {}
    for reward in rewards:
        try:
            value = reward(completion, example)
        except Exception as error:
            what = f"reward {name_of(reward)!r} raised {type(error).__name__}: {error}"
            raise RewardError(
                what, got=f"completion {completion!r}", do="mend the function; the run resumes"
            ) from error
        if value is None:
            return None
        if isinstance(value, Mapping) and not value:
            raise RewardError(f"reward {name_of(reward)!r} returned no reward", got="an empty mapping", need=_REWARD)
        named = value if isinstance(value, Mapping) else {name_of(reward).rpartition(":")[2]: value}
        for name, part in named.items():
            if isinstance(part, bool | Real) and part == part:
                components[name] = components.get(name, 0.0) + float(part)
            else:
                raise RewardError(f"reward {name_of(reward)!r} returned no reward", got=repr(value), need=_REWARD)
    return components
