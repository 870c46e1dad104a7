"""The components of a reward: their names and their values.

Each component is a metric ``reward/<name>``, so its name must not be that of another metric, and the number of
different names is limited.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from numbers import Real
from typing import Any

from purerl.errors import ConfigError, RewardError

__all__ = [
    "MAX_COMPONENTS",
    "RESERVED_NAMES",
    "added",
    "check_component",
    "check_names",
    "check_number",
    "is_valid_number",
    "short_name",
    "to_components",
]

RESERVED_NAMES = (
    *("mean", "std", "min", "max", "zero_std_fraction"),
    *("valid_fraction", "failed", "timed_out", "overlong"),
)
"""Names of metrics of the reward: there is a metric ``reward/<name>`` for each."""

MAX_COMPONENTS = 100
_MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
_NAME = re.compile(r"[\w.:@+-]([\w .:@+-]{0,98}[\w.:@+-])?")
_NAME_NEED = "at most 100 letters, digits, spaces and characters of _.:@+-"


@lru_cache(maxsize=10 * MAX_COMPONENTS)
def short_name(name: str) -> str:
    """The last part of the name of a reward function: ``module:Class.length`` becomes ``length``.

    >>> short_name("module:<lambda>")
    'lambda'
    """
    return re.split("[:.]", name)[-1].strip("<>")


def check_names(functions: Iterable[str]) -> None:
    """Refuse reward functions, given by name, whose component would have the name of another metric.

    Raises: ConfigError.
    """
    for name in functions:
        if short_name(name) in RESERVED_NAMES:
            need = f"a function with a name that is not one of: {', '.join(RESERVED_NAMES)}"
            what = f"reward {name!r} would have the metric reward/{short_name(name)}"
            raise ConfigError(what, got="the name of another metric", need=need, do="rename the function")


def to_components(function: str, value: Any) -> dict[str, float]:
    """The components that a reward function has returned: one with its own name, or those of a mapping.

    Raises: ValueError for an invalid name or an invalid number.

    >>> to_components("module:Class.length", 3)
    {'length': 3.0}
    """
    components = value if isinstance(value, Mapping) else {short_name(function): value}
    # Scalars of numpy and torch have the shape () and a method item().
    numbers = {
        str(key): number.item() if getattr(number, "shape", None) == () else number
        for key, number in components.items()
    }
    if not all(map(is_valid_number, numbers.values())):
        need = "a number that float32 can hold, a mapping of names to such numbers, or None"
        raise ValueError(f"returned {value!r:.200}; need {need}")
    for name in numbers:
        _check_name(name)
    return {name: float(number) for name, number in numbers.items()}


def added(*mappings: Mapping[str, float]) -> dict[str, float]:
    """The values of all `mappings`; those with the same name are added up.

    >>> added({"a": 1.0}, {"a": 2.0, "b": 0.5})
    {'a': 3.0, 'b': 0.5}
    """
    total: dict[str, float] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            total[name] = total.get(name, 0.0) + value
    return total


def check_component(name: str) -> None:
    """Raise ConfigError if a component cannot have the `name`, which a user has chosen."""
    if name in RESERVED_NAMES:
        need = f"a name that is not one of: {', '.join(RESERVED_NAMES)}"
        raise ConfigError(f"reward {name!r} would have the metric reward/{name}", got="another metric", need=need)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"reward {name!r:.200}", got="other characters, or too many", need=_NAME_NEED)


@lru_cache(maxsize=10 * MAX_COMPONENTS)
def _check_name(name: str) -> None:
    if name in RESERVED_NAMES:
        raise ValueError(f"returned a component {name!r}; reward/{name} is another metric, use another name")
    if not _NAME.fullmatch(name):
        raise ValueError(f"returned a component {name!r:.200}; need a name of {_NAME_NEED}")


def is_valid_number(value: Any) -> bool:
    """Whether `value` is a real number that float32 can hold: not NaN, not infinite, not too large."""
    return (type(value) is float or isinstance(value, Real)) and bool(abs(value) <= _MAX_FLOAT32)


def check_number(names: Collection[str]) -> None:
    """Raise RewardError if there are too many different `names` of components, each of which is a metric."""
    if len(names) > MAX_COMPONENTS:
        examples = ", ".join(repr(name) for name in sorted(names)[:5])
        raise RewardError(
            "reward functions returned too many different components",
            got=f"{len(names)}: {examples}, ...",
            need=f"at most {MAX_COMPONENTS} names: each is a metric",
            do="return the same names for each completion; a number that identifies it does not belong into a name",
        )
