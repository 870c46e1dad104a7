"""Every setting of a configuration: its value, its unit, its meaning, and the source of the value."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import attrs
from attrs import frozen

from purerl.composition import Composition
from purerl.config.modifiers import key_of
from purerl.config.presets import presets
from purerl.config.structure import to_dict
from purerl.config.tables import write
from purerl.plugins import kind_of, names

__all__ = ["NO_PRESET", "Setting", "annotate", "explain", "leaves", "toml"]


NO_PRESET: tuple[Mapping[str, Any], str] = ({}, "")
"""Settings that no preset has set."""


@frozen
class Setting:
    """One setting. `value` is written as in `--set`, and is empty if the setting is not set.

    `choices` are its valid values, written in the same way, if they are few; otherwise empty.
    """

    key: str
    value: str
    unit: str
    meaning: str
    source: str
    choices: tuple[str, ...] = ()


def explain(
    config: Any,
    *,
    unchanged: Any = None,
    changed: Collection[str] = (),
    written: Collection[str] = (),
    recipe: str,
    preset: tuple[Mapping[str, Any], str] = NO_PRESET,
) -> list[Setting]:
    """All settings of `config` and of its sections, in the order of their classes.

    changed    keys that `--set` changed
    unchanged  `config` without these changes
    written    keys in the file `recipe` from which the configuration was read
    preset     what a preset sets, by key, and its name

    The source of a value is ``--set`` if its key is in `changed`; the name of the `preset` if it has this value from
    it; ``--set`` too if the value would differ without the changes and is not the default; `recipe` if its key is in
    `written`, or if it is not the default; and "default" otherwise.
    """
    before = {key: value for key, value, *_ in leaves(unchanged or config)}

    def source(key: str, value: Any, default: Any) -> str:
        if key in changed:
            return "--set"
        if key in preset[0] and toml(value) == toml(preset[0][key]):
            return preset[1]
        if value not in (default, before.get(key, default)):
            return "--set"
        return recipe if key in written or value != default else "default"

    return [
        Setting(
            key,
            toml(value),
            metadata.get("unit", ""),
            metadata.get("help", ""),
            source(key, value, default),
            tuple(map(toml, metadata.get("options", ()))),
        )
        for key, value, metadata, default in leaves(config)
    ]


def annotate(text: str, origins: Mapping[str, str]) -> str:
    r"""`text`, which `purerl.config.structure.dumps` has written, with a comment for each value that is not a default.

    `origins` are the sources of values by dotted key, as `explain` gives them.

    >>> print(annotate("a = 1\n\n[s]\nb = 2", {"a": "default", "s.b": "recipe"}))
    a = 1
    <BLANKLINE>
    [s]
    b = 2  # recipe
    """
    lines, section = list[str](), ""
    for line in text.splitlines():
        header, assignment = re.fullmatch(r"\[{1,2}(.+?)\]{1,2}", line), re.match(r'("[^"]+"|[\w-]+) = ', line)
        key = section
        if header:
            section = header[1]
            key = "" if section.endswith(_MODIFIERS) else section
        elif assignment:
            key = f"{section}.{assignment[1]}".removeprefix(".")
            if section.endswith(_MODIFIERS) and assignment[1] == "kind":  # a modifier has a section of its own
                kind = line.partition(" = ")[2].strip('"')
                section, key = f"{section.removesuffix(_MODIFIERS)}.{key_of(kind)}", section
        origin = origins.get(key, "default") if header or assignment else "default"
        lines.append(line if origin == "default" else f"{line}  # {origin}")
    return "\n".join(lines)


_MODIFIERS = ".modifiers"


def leaves(config: Any, above: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any], Any]]:
    """Dotted key, value, metadata and default of every setting in `config` that is not a section.

    The metadata of a setting with few valid values have these as "options".
    """
    for field in attrs.fields(type(config)):
        yield from _leaves_at(above + field.name, getattr(config, field.name), field)


def _leaves_at(key: str, value: Any, field: attrs.Attribute) -> Iterator[tuple[str, Any, Mapping[str, Any], Any]]:
    metadata, default = {**_options(field), **field.metadata}, field.default
    if isinstance(value, Mapping) and any(attrs.has(type(v)) or isinstance(v, Mapping) for v in value.values()):
        for name, item in value.items():
            yield from _leaves_at(f"{key}.{name}", item, field)
    elif isinstance(value, Composition):
        yield from _leaves_at(key, value.base, field)
        kinds = [kind_of(modifier) for modifier in value.modifiers]
        yield f"{key}.modifiers", kinds, attrs.fields(Composition).modifiers.metadata, []
        for kind, modifier in zip(kinds, value.modifiers, strict=True):
            yield from leaves(modifier, f"{key}.{key_of(kind)}.")
    elif attrs.has(type(value)):
        if "plugin" in metadata:
            yield f"{key}.kind", kind_of(value), {**metadata, "options": _kinds(metadata["plugin"])}, None
        yield from leaves(value, f"{key}.")
    else:
        if "plugin" in metadata and value:  # several plugins
            value = tuple({"kind": kind_of(config)} | attrs.asdict(config, recurse=False) for config in value)
        yield key, value, metadata, default.factory() if isinstance(default, attrs.Factory) else default


def _options(field: attrs.Attribute) -> dict[str, Any]:
    """The values of a type such as ``Literal["a", "b"] | None``."""
    literals = [kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is Literal]
    return {"options": get_args(literals[0])} if literals else {}


def _kinds(group: str) -> list[str]:
    """The kinds of the plugins of `group`; the presets are kinds of algorithms."""
    return [*names(group), *(presets() if group == "algorithm" else ())]


def toml(value: Any) -> str:
    """`value`, which may contain settings classes, as it is written in `--set`."""
    return write(_plain(value))


def _plain(value: Any) -> Any:
    """`value` with tables in place of settings classes."""
    if attrs.has(type(value)):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value
