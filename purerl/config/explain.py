"""Every setting of a configuration, with its value, its unit, its meaning, and where the value came from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs
import tomli_w
from attrs import frozen

from purerl.plugins import kind_of

__all__ = ["Setting", "explain", "toml"]


@frozen
class Setting:
    """One setting: `value` as `--set` takes it, empty where nothing is set; `source` is where it came from."""

    key: str
    value: str
    unit: str
    meaning: str
    source: str


def explain(
    config: Any, *, otherwise: Any = None, made: Collection[str] = (), written: Collection[str] = (), recipe: str
) -> list[Setting]:
    """All settings of `config`, sections opened, in the order of their classes.

    `made` are the keys that `--set` gave, `otherwise` is what `config` is without them, and `written` are the keys of
    `recipe`, what the configuration was read from. A value came from `--set` if its key is one of those, or if it would
    be another otherwise and is not the default; from `recipe` if its key is written there, or it is not the default;
    and else it is the default.
    """
    before = {key: value for key, value, *_ in _leaves(otherwise or config)}

    def source(key: str, value: Any, default: Any) -> str:
        if key in made or value not in (default, before.get(key, default)):
            return "--set"
        return recipe if key in written or value != default else "default"

    return [
        Setting(key, toml(value), about.get("unit", ""), about.get("help", ""), source(key, value, default))
        for key, value, about, default in _leaves(config)
    ]


def _leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any, Mapping[str, str], Any]]:
    """Dotted key, value, what its field says of itself, and default of everything in `config` that is no section."""
    for field in attrs.fields(type(config)):
        key, value = above + field.name, getattr(config, field.name)
        if not attrs.has(type(value)):
            yield key, _kinds_told(value) if "plugin" in field.metadata else value, field.metadata, _default(field)
            continue
        if "plugin" in field.metadata:
            yield f"{key}.kind", kind_of(value), field.metadata, None
        yield from _leaves(value, f"{key}.")


def _kinds_told(configs: Any) -> Any:
    """Several plugins' Configs as tables, each with its kind; a single one that is not set as it is."""
    return configs and tuple({"kind": kind_of(one)} | attrs.asdict(one, recurse=False) for one in configs)


def _default(field: attrs.Attribute) -> Any:
    factory = field.default.factory if isinstance(field.default, attrs.Factory) else None
    return factory() if factory else field.default


def toml(value: Any) -> str:
    """`value` as `--set` takes it."""
    if attrs.has(type(value)):
        value = attrs.asdict(value, recurse=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {toml(part)}' for name, part in value.items() if part is not None)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return "" if value is None else tomli_w.dumps({"value": value}).strip().removeprefix("value = ")
