"""Fields of an algorithm's `Config`: numbers with bounds, checked when the Config is made.

A field's metadata say what it is: `help`, its `unit`, and what it may be, `need`.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import Attribute, field

from purerl.errors import ConfigError

__all__ = ["in_order", "number", "numbers", "optional", "whole"]


def number(
    help: str,
    default: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    unit: str = "",
) -> Any:
    """An attrs field that holds a finite float in its bounds. Raises: ConfigError when it is given anything else."""
    bounds = {"at least {:g}": least, "above {:g}": above, "at most {:g}": most}
    finite = " and ".join(text.format(bound) for text, bound in bounds.items() if math.isfinite(bound))
    need = f"a number {finite}".rstrip()

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        right = type(value) is float and math.isfinite(value) and above < value and least <= value <= most
        if not right:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=f"leave it out for {default:g}")

    return field(default=float(default), converter=_float, validator=check, metadata=_metadata(help, unit, need))


def numbers(help: str, default: tuple[float, ...] = ()) -> Any:
    """An attrs field that holds any number of finite floats. Raises: ConfigError when it is given anything else."""

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if type(value) is not tuple or not all(type(item) is float and math.isfinite(item) for item in value):
            raise ConfigError(attribute.name, got=repr(value), need="numbers", do=f"leave it out for {default}")

    return field(default=default, converter=_floats, validator=check, metadata=_metadata(help, "", "numbers"))


def _floats(value: Any) -> Any:
    return tuple(map(_float, value)) if isinstance(value, list | tuple) else value


def _float(value: Any) -> Any:
    """1 and 1.0 are one setting, with one fingerprint. True is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def whole(help: str, default: int, *, least: int, unit: str = "") -> Any:
    """An attrs field that holds a whole number of at least `least`. Raises: ConfigError when given anything else."""
    need = f"a whole number of at least {least}"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if type(value) is not int or value < least:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=f"leave it out for {default}")

    return field(default=default, validator=check, metadata=_metadata(help, unit, need))


def in_order(config: Any, low: str, high: str) -> None:
    """Raises ConfigError unless the setting `low` is below `high`: nothing would be in the band between the two."""
    if not getattr(config, low) < getattr(config, high):
        raise ConfigError(low, got=getattr(config, low), need=f"a number below {high}, {getattr(config, high):g}")


def _metadata(help: str, unit: str, need: str) -> dict[str, str]:
    return {"help": help, "unit": unit, "need": need}


def optional(coefficient: float, *items: Any) -> tuple:
    """`items`, or nothing where `coefficient` is 0: what is weighted by 0 is not there, and what it reads is not read.

    >>> optional(0.1, "ref_logp"), optional(0.0, "ref_logp")
    (('ref_logp',), ())
    """
    return items if coefficient else ()
