"""Fields of an algorithm's `Config`: numbers with bounds, and choices, which are checked when the Config is created.

The metadata of a field hold its `help`, its `unit` and `need`, a description of the values that are allowed. A number
has `bounds`, pairs of a comparison and a number: ((">=", 0), ("<=", 1)). `purerl.testing.check_bounds` tests them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from attrs import Attribute, field, fields, fields_dict

from purerl.errors import ConfigError, nearest

__all__ = [
    "base_settings",
    "choice",
    "choices",
    "flag",
    "integer",
    "number",
    "numbers",
    "optional",
    "require_below",
    "require_target",
]


def number(
    help: str,
    default: float,
    *,
    min: float = -math.inf,
    above: float = -math.inf,
    max: float = math.inf,
    unit: str = "",
    infinite: str = "",
) -> Any:
    """Return an attrs field for a float with `above` < value, and `min` <= value <= `max`.

    An integer is converted to a float. `infinite` says what the value inf means, at the end of the help; without it the
    value must be finite. Raises: ConfigError for any other value.
    """
    bounds = {"at least {:g}": min, "above {:g}": above, "at most {:g}": max}
    limits = " and ".join(text.format(bound) for text, bound in bounds.items() if math.isfinite(bound))
    need = f"a number {limits}".rstrip()

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        is_number = type(value) is float and above < value and min <= value <= max
        if not is_number or (math.isinf(value) and not (infinite and value > 0)):
            finite = ", and finite" if is_number else ""
            raise ConfigError(attribute.name, got=repr(value), need=need + finite, do=_remedy(f"{default:g}"))

    ends = {">=": min, ">": above, "<=": max}
    declared = [(comparison, end) for comparison, end in ends.items() if math.isfinite(end)]
    declared += [("<=", math.inf)] if infinite else []
    metadata = _metadata(f"{help}; inf: {infinite}" if infinite else help, unit, need) | {"bounds": tuple(declared)}
    return field(default=float(default), converter=_to_float, validator=check, metadata=metadata)


def numbers(help: str, default: tuple[float, ...] = ()) -> Any:
    """Return an attrs field for a tuple of finite floats of any length. Raises: ConfigError for any other value."""
    need = "a list of numbers"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if type(value) is not tuple or not all(type(item) is float and math.isfinite(item) for item in value):
            raise ConfigError(attribute.name, got=repr(value), need=need, do=_remedy(default))

    return field(default=default, converter=_to_floats, validator=check, metadata=_metadata(help, "", need))


def _to_floats(value: Any) -> Any:
    return tuple(map(_to_float, value)) if isinstance(value, list | tuple) else value


def _to_float(value: Any) -> Any:
    """Convert an int to a float, so that 1 and 1.0 have the same fingerprint. A bool is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def integer(help: str, default: int, *, min: int, unit: str = "") -> Any:
    """Return an attrs field for an integer of at least `min`. Raises: ConfigError for any other value."""
    need = f"an integer of at least {min}"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if type(value) is not int or value < min:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=_remedy(default))

    metadata = _metadata(help, unit, need) | {"bounds": ((">=", min),)}
    return field(default=default, validator=check, metadata=metadata)


def choice(help: str, options: Iterable[str], default: str) -> Any:
    """Return an attrs field for one of the strings `options`. Raises: ConfigError for any other value."""
    known = tuple(options)
    need = f"one of: {', '.join(known)}"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if value not in known:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=nearest(str(value), known))

    return field(default=default, validator=check, metadata=_metadata(help, "", need) | {"options": known})


def choices(help: str, options: Iterable[str], default: tuple[str, ...]) -> Any:
    """Return an attrs field for a tuple of different strings among `options`, at least one; a string is a tuple of one.

    Raises: ConfigError for any other value.
    """
    known = tuple(options)
    need = f"a list of at least one of: {', '.join(known)}"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        items = value if type(value) is tuple else ()
        unknown = [item for item in items if item not in known]
        if not items or unknown or len(set(items)) < len(items):
            do = nearest(str(unknown[0]), known) if unknown else "name each of them once" if items else None
            raise ConfigError(attribute.name, got=repr(value), need=need, do=do)

    metadata = _metadata(help, "", need) | {"options": known}
    return field(default=default, converter=_to_strings, validator=check, metadata=metadata)


def _to_strings(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def flag(help: str) -> Any:
    """Return an attrs field for true or false, which is false by default. Raises: ConfigError for any other value."""
    need = "true or false"

    def check(instance: Any, attribute: Attribute, value: Any) -> None:
        if type(value) is not bool:
            raise ConfigError(attribute.name, got=repr(value), need=need, do=_remedy("false"))

    return field(default=False, validator=check, metadata=_metadata(help, "", need) | {"options": (True, False)})


def require_below(config: Any, low: str, high: str) -> None:
    """Raise ConfigError unless the setting `low` of `config` is below its setting `high`."""
    if not getattr(config, low) < getattr(config, high):
        need, do = f"a number below {high}, which is {getattr(config, high):g}", f"lower {low} or raise {high}"
        raise ConfigError(low, got=getattr(config, low), need=need, do=do)


def require_target(config: Any, *names: str) -> None:
    """Raise ConfigError if `config` has no target, and its coef is 0 or one of the settings `names` is no default.

    These settings say how a coefficient adapts to the setting `target`. With the target 0, it is constant.
    """
    if not config.target and not config.coef:
        need = "a number above 0: without a target the coefficient is constant, and 0 has no effect"
        raise ConfigError("coef", got="0", need=need, do="set target, or leave the modifier out")
    for name in names:
        value, default = getattr(config, name), getattr(fields(type(config)), name).default
        if not config.target and value != default:
            need = f"{default:g}: without a target the coefficient is constant, and {name} has no effect"
            raise ConfigError(name, got=f"{value:g}", need=need, do=f"set target, or leave {name} out")


def _remedy(default: object) -> str:
    return f"remove it to use the default, {default}"


def _metadata(help: str, unit: str, need: str) -> dict[str, Any]:
    return {"help": help, "unit": unit, "need": need}


def base_settings(config: Any, base: type) -> Any:
    """The Config `base` with the values that `config`, the Config of an algorithm derived from it, has for its fields.

    >>> from purerl.algos import dapo, grpo
    >>> base_settings(dapo.Config(), grpo.Config)
    Config(clip_low=0.2, clip_high=0.28)
    """
    return base(**{name: getattr(config, name) for name in fields_dict(base)})


def optional(coefficient: float, *items: Any) -> tuple:
    """Return `items`, or an empty tuple if `coefficient` is 0.

    A term with the coefficient 0 is left out of an objective, and the fields that it reads are not needed.

    >>> optional(0.1, "ref_logp"), optional(0.0, "ref_logp")
    (('ref_logp',), ())
    """
    return items if coefficient else ()
