"""Every setting of a configuration, with its value, its unit, its meaning, and where the value came from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs
import tomli_w
from attrs import frozen

from purerl.plugins import kind_of

__all__ = ["Setting", "explain"]


@frozen
class Setting:
    """One setting: `value` as TOML writes it, empty where nothing is set; `source` is where it came from."""

    key: str
    value: str
    unit: str
    meaning: str
    source: str


def explain(config: Any, *, made: Collection[str] = (), written: Collection[str] = (), recipe: str) -> list[Setting]:
    """All settings of `config`, sections opened, in the order of their classes.

    `made` are the keys that `--set` gave, and `written` those of `recipe`, what the configuration was read from. A
    value came from `--set` if its key is one of them, or that of a section around it and the value is not the default;
    from `recipe` if its key is written there, or it is not the default; and else it is the default.
    """

    def source(key: str, value: Any, default: Any) -> str:
        parts = key.split(".")
        around = {".".join(parts[:n]) for n in range(1, len(parts))}
        if key in made or (value != default and around & {*made}):
            return "--set"
        return recipe if key in written or value != default else "default"

    return [
        Setting(key, _toml(value), about.get("unit", ""), about.get("help", ""), source(key, value, default))
        for key, value, about, default in _leaves(config)
    ]


def _leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any, Mapping[str, str], Any]]:
    """Dotted key, value, what its field says of itself, and default of everything in `config` that is no section."""
    for field in attrs.fields(type(config)):
        key, value = above + field.name, getattr(config, field.name)
        several = "plugin" in field.metadata and isinstance(value, tuple) and value
        sections = {f"{key}.{k}": one for k, one in enumerate(value)} if several else {key: value}
        for name, section in sections.items():
            if not attrs.has(type(section)):
                yield name, section, field.metadata, _default(field)
                continue
            if "plugin" in field.metadata:
                yield f"{name}.kind", kind_of(section), field.metadata, None
            yield from _leaves(section, f"{name}.")


def _default(field: attrs.Attribute) -> Any:
    factory = field.default.factory if isinstance(field.default, attrs.Factory) else None
    return factory() if factory else field.default


def _toml(value: Any) -> str:
    if attrs.has(type(value)):
        value = attrs.asdict(value, recurse=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_toml(part)}' for name, part in value.items() if part is not None)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return "" if value is None else tomli_w.dumps({"value": value}).strip().removeprefix("value = ")
