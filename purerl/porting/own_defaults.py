"""Defaults of settings of purerl, by dotted key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from purerl.config.keys import section_in
from purerl.config.overrides import parse
from purerl.config.presets import expand
from purerl.config.schema import RunConfig
from purerl.plugins import find, names

__all__ = ["NO_DEFAULT", "own_default"]

NO_DEFAULT = object()
"""The default of a setting that has none, and of a modifier."""


def own_default(key: str, kinds: Mapping[str, Any]) -> Any:
    """The default of the setting `key`, as it is in TOML, or `NO_DEFAULT`; `kinds` are the kinds of plugins by section.

    >>> own_default("rollout.temperature", {}), own_default("trainer.betas", {"trainer": "hf"})
    (1.0, [0.9, 0.999])
    """
    cls: Any = RunConfig
    parts, _ = parse(f"{key}=")
    preset = expand({"kind": kinds.get("algorithm")}) if parts[0] == "algorithm" and len(parts) > 1 else {}
    if (value := _of_preset(preset, parts[1:])) is not NO_DEFAULT:
        return value
    for depth, part in enumerate(parts, start=1):
        fields = attrs.fields_dict(attrs.resolve_types(cls)) if cls else {}
        if part not in fields:
            return NO_DEFAULT
        field = fields[part]
        if depth == len(parts):
            return _plain(field.default)
        cls = _section(field, kinds.get(".".join(parts[:depth])))
    return NO_DEFAULT


def _of_preset(preset: Mapping[str, Any], parts: list[str]) -> Any:
    """The value of the setting `parts` in the section of an algorithm that is a `preset`, also in its modifiers."""
    if not parts or parts[0] in ("kind", "modifiers"):
        return NO_DEFAULT
    if parts[0] in preset:
        return preset[parts[0]]
    listed = [each for each in preset.get("modifiers", ()) if isinstance(each, Mapping) and each["kind"] == parts[0]]
    if not listed or parts[0] not in names("modifier"):
        return NO_DEFAULT
    main = attrs.fields(find("modifier", parts[0]).Config)[0].name
    return listed[0].get(parts[1] if len(parts) > 1 else main, NO_DEFAULT)


def _section(field: attrs.Attribute, kind: Any) -> Any:
    if "plugin" not in field.metadata:
        return section_in(field.type)
    return find(field.metadata["plugin"], expand({"kind": kind})["kind"]).Config if isinstance(kind, str) else None


def _plain(default: Any) -> Any:
    value = default.factory() if isinstance(default, attrs.Factory) else default
    return [*value] if isinstance(value, tuple) else NO_DEFAULT if value is attrs.NOTHING else value
