"""Presets: the variants of other libraries under the name of an algorithm, as compositions of ours.

A preset is named ``algorithm@library``, for example ``grpo@verl``. There is one file for each library, with its version
and a table for each preset:

    algorithm     the section of a configuration: `kind`, settings, and `modifiers`
    defaults      settings of modifiers that the preset does not have: they apply if such a modifier is added
    checked       "executed": the value and the gradient were compared with the library; "read": its code was read
    differences   what differs from the library nevertheless, and why: sentences, or names of conventions

The other tables of a file are for all of its presets: `defaults` of those that have none of their own; `conventions`,
sentences by name; and `modifiers`, what differs from the library if the preset gets a modifier.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from purerl.errors import ConfigError, nearest

__all__ = ["Preset", "defaults_of", "expand", "presets"]


class Preset(NamedTuple):
    """A preset, see the module. `summary` says in one sentence what it is."""

    name: str
    library: str
    version: str
    summary: str
    algorithm: Mapping[str, Any]
    defaults: Mapping[str, Mapping[str, Any]]
    checked: Literal["executed", "read"]
    differences: tuple[str, ...]
    modifiers: Mapping[str, tuple[str, ...]]


@cache
def presets() -> Mapping[str, Preset]:
    """All presets by name.

    >>> presets()["grpo@verl"].algorithm["kind"]
    'grpo'
    """
    files = (tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(__file__).parent.glob("*.toml")))
    found = (_preset(name, file) for file in files for name in file["presets"])
    return {preset.name: preset for preset in found}


def _preset(name: str, file: Mapping[str, Any]) -> Preset:
    table, conventions = file["presets"][name], file.get("conventions", {})
    return Preset(
        name=f"{name}@{file['key']}",
        library=file["library"],
        version=file["version"],
        summary=table["summary"],
        algorithm=table["algorithm"],
        defaults=table.get("defaults", file.get("defaults", {})),
        checked=table["checked"],
        differences=_sentences(table.get("differences", ()), conventions),
        modifiers={kind: _sentences(texts, conventions) for kind, texts in file.get("modifiers", {}).items()},
    )


def _sentences(texts: Collection[str], conventions: Mapping[str, str]) -> tuple[str, ...]:
    """The texts, with the sentences of conventions in place of their names."""
    return tuple(conventions.get(text, text) for text in texts)


def expand(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section of an algorithm, with the settings of a preset if its `kind` is one; other settings replace them.

    Raises: ConfigError for an unknown preset.

    >>> expand({"kind": "grpo@verl", "clip_high": 0.28})["clip_high"]
    0.28
    """
    kind = table.get("kind")
    if not isinstance(kind, str) or "@" not in kind:
        return table
    if kind not in presets():
        raise ConfigError(f"kind: unknown preset {kind!r}", do=nearest(kind, presets()))
    return {**presets()[kind].algorithm, **{key: value for key, value in table.items() if key != "kind"}}


def defaults_of(kind: Any) -> Mapping[str, Mapping[str, Any]]:
    """The `defaults` of the preset `kind`, settings by kind of modifier; empty if `kind` is no preset.

    >>> defaults_of("grpo@trl")["kl_loss"], defaults_of("grpo")
    ({'estimator': 'importance_k3'}, {})
    """
    preset = presets().get(kind) if isinstance(kind, str) else None
    return preset.defaults if preset else {}
