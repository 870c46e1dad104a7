"""Whether settings that a table names exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_origin

import attrs

from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.plugins import find, locate, names
from purerl.recipes import resolve


def is_setting(key: str) -> bool:
    """Whether some run has a setting with this dotted key."""
    return has(RunConfig, key.split("."))


def has(kind: Any, parts: list[str]) -> bool:
    """Whether a value of the type `kind` has the setting `parts`. Optional types, tuples and mappings are searched."""
    if not parts:
        return True
    if attrs.has(kind):
        field = attrs.fields_dict(attrs.resolve_types(kind)).get(parts[0])
        return field is not None and _has_below(field, parts[1:])
    inner = parts[1:] if get_origin(kind) is Mapping else parts
    return any(has(choice, inner) for choice in get_args(kind))


def _has_below(field: Any, parts: list[str]) -> bool:
    """Whether the value of `field` has the setting `parts`; plugins have those of their Configs, and `kind`.

    An algorithm also has modifiers: `parts` may be the name of one, or start with it.
    """
    group = field.metadata.get("plugin")
    if group is None:
        return has(field.type, parts)
    if group == "algorithm" and parts and parts[0] in names("modifier"):
        return has(find("modifier", parts[0]).Config, parts[1:])
    return parts == ["kind"] or any(has(find(group, kind).Config, parts) for kind in names(group))


def problems(settings: tuple[str, ...]) -> list[str]:
    """Those of `settings` that do not exist, do not have that value, or are not functions."""
    try:
        resolve("gsm8k", ["model=m", "data=d", *(text for text in settings if "=" in text)])
    except ConfigError as error:
        return [str(error)]
    plain = [text for text in settings if "=" not in text]
    functions = [text for text in plain if text.startswith("purerl.")]
    assert all(callable(locate(function)) for function in functions)
    return [text for text in plain if text not in functions and not is_setting(text)]
