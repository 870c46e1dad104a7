"""Loading reward functions, and what is known about a function before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from purerl.errors import ConfigError, similar
from purerl.plugins import locate, names
from purerl.rewards.adapters import CHECKED_BY, NEEDS_ONE_OF, TAKES_UP_TO, LoadedReward, RewardFunction, RowCheck
from purerl.rewards.conventions import CONVENTIONS, PURERL, convention_of
from purerl.system.static_inspect import exists

__all__ = [
    "alternative_columns",
    "as_reward",
    "declared_seconds",
    "is_async",
    "load_reward",
    "name_of",
    "readable_signature",
    "required_columns",
    "row_check",
]


def load_reward(name: str, kwargs: Mapping[str, Any] | None = None) -> LoadedReward:
    """Load the reward function ``module:function`` or ``file.py:function``. It always gets the arguments `kwargs`.

    Raises: ConfigError if there is no such function, or if it follows no convention.
    """
    if ":" not in name and name in names("reward"):  # each worker comes here, and names take 20 milliseconds to find
        do = f"write it as a table, {{kind = {name!r}}}"
        raise ConfigError(f"reward {name!r}", got="a kind", need="a function, as module:function", do=do)
    if name.startswith("__main__:"):
        got = "a function in __main__, which is another module in a worker process"
        do = "pass the function itself, rewards=[function], or name its file, file.py:function"
        raise ConfigError(f"reward {name!r}", got=got, do=do)
    if ":" not in name and not exists(name):
        own = _own_functions()
        near = similar(name, own)
        do = f"did you mean {own[near]!r}?" if near else "name a function, as module:function or file.py:function"
        raise ConfigError(f"reward {name!r}", got="no module of this name", need="a function", do=do)
    return as_reward(name, locate(name), kwargs)


def _own_functions() -> dict[str, str]:
    """The addresses of purerl's reward functions, by the name of the function."""
    modules = {path: locate(path) for path in ("purerl.rewards.exact", "purerl.rewards.math")}
    named = {f"{path}:{name}": getattr(module, name) for path, module in modules.items() for name in module.__all__}
    return {
        address.partition(":")[2]: address
        for address, value in named.items()
        if inspect.isfunction(value) and "example" in inspect.signature(value).parameters
    }


def name_of(function: RewardFunction) -> str:
    """The name of a reward function that was passed as an object, as it is written in the configuration of a run."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def as_reward(name: str, function: RewardFunction, kwargs: Mapping[str, Any] | None = None) -> LoadedReward:
    """Detect the convention of `function`, which always gets the arguments `kwargs`.

    Raises: ConfigError if it is not callable, has no such arguments, or follows no convention.

    >>> as_reward("length", lambda completion, example: 1.0).convention.name
    'purerl'
    >>> as_reward("trl_reward", lambda prompts, completions, **columns: []).convention.name
    'TRL'
    """
    if not callable(function):
        raise ConfigError(f"reward {name!r}", got=type(function).__name__, need="a function (completion, example)")
    function = _with_arguments(name, function, kwargs) if kwargs else function
    signature = readable_signature(function)
    parameters = signature.parameters if signature else {}
    convention = convention_of(parameters)
    got = f"a function ({', '.join(parameters)})"
    _, second, *_ = (*parameters, "", "")
    if convention is PURERL and second in _GROUND_TRUTH_NAMES:
        need = f"{PURERL.signature}; `example` is the complete row of the data set"
        raise ConfigError(f"reward {name!r}", got=got, need=need, do=f"read example[{second!r}]")
    if signature is not None and not convention.accepts(signature):
        need = "one of: " + "; ".join(f"{convention.signature} ({convention.name})" for convention in CONVENTIONS)
        raise ConfigError(f"reward {name!r}", got=got, need=need)
    return LoadedReward(name, function, convention, parameters)


def _with_arguments(name: str, function: RewardFunction, kwargs: Mapping[str, Any]) -> RewardFunction:
    signature = readable_signature(function)
    try:
        if signature is not None:
            signature.bind_partial(**kwargs)
    except TypeError as error:
        got = f"a function ({', '.join(signature.parameters)})"
        raise ConfigError(f"kwargs of the reward {name!r}", got=got, need=f"its arguments: {error}") from error
    bound = partial(function, **kwargs)
    setattr(bound, NEEDS_ONE_OF, getattr(function, NEEDS_ONE_OF, ()))
    setattr(bound, TAKES_UP_TO, getattr(function, TAKES_UP_TO, 0.0))
    setattr(bound, CHECKED_BY, getattr(function, CHECKED_BY, None))
    return bound


_GROUND_TRUTH_NAMES = ("ground_truth", "answer", "solution", "label", "target", "gold")
"""Names of a second parameter that show that the function expects the ground truth instead of the row."""


def required_columns(reward: LoadedReward) -> tuple[str, ...]:
    """The columns of the examples that `reward` requires, as far as its parameters show."""
    return reward.convention.required_columns(reward.parameters)


def alternative_columns(reward: LoadedReward) -> tuple[str, ...]:
    """The columns of which `reward` needs at least one, as declared with `needs_one_of`; empty without it."""
    return getattr(reward.function, NEEDS_ONE_OF, ())


def row_check(function: RewardFunction) -> RowCheck | None:
    """The check of a row that `function` declares with `checked_by`; None without one."""
    return getattr(function, CHECKED_BY, None)


def declared_seconds(reward: LoadedReward) -> float:
    """The longest time of a call of `reward`, as declared with `takes_up_to`; 0 without it."""
    return getattr(reward.function, TAKES_UP_TO, 0.0)


def is_async(function: RewardFunction) -> bool:
    """Whether `function` is an async function, or an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def readable_signature(function: RewardFunction) -> inspect.Signature | None:
    """The signature. None if Python cannot inspect the function, as for some functions in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
