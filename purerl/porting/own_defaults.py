"""Defaults of settings of purerl, by dotted key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from purerl.config.keys import section_in
from purerl.config.overrides import parse
from purerl.config.presets import expand
from purerl.config.schema import RunConfig
from purerl.plugins import find

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
    for depth, part in enumerate(parts, start=1):
        fields = attrs.fields_dict(attrs.resolve_types(cls)) if cls else {}
        if part not in fields:
            return NO_DEFAULT
        field = fields[part]
        if depth == len(parts):
            return _plain(field.default)
        cls = _section(field, kinds.get(".".join(parts[:depth])))
    return NO_DEFAULT


def _section(field: attrs.Attribute, kind: Any) -> Any:
    if "plugin" not in field.metadata:
        return section_in(field.type)
    return find(field.metadata["plugin"], expand({"kind": kind})["kind"]).Config if isinstance(kind, str) else None


def _plain(default: Any) -> Any:
    value = default.factory() if isinstance(default, attrs.Factory) else default
    return [*value] if isinstance(value, tuple) else NO_DEFAULT if value is attrs.NOTHING else value
