"""Presets: what other libraries compute under the name of an algorithm, as a composition of ours.

A preset is named ``algorithm@library``, for example ``grpo@verl``. There is one file for each library, with its version
and a table for each preset:

    algorithm     the section of a configuration: `kind`, settings, and `modifiers`
    checked       "executed": the value and the gradient were compared with the library; "read": its code was read
    differences   what differs from the library nevertheless, and why
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from purerl.errors import ConfigError, nearest

__all__ = ["Preset", "expand", "presets"]


class Preset(NamedTuple):
    """A preset, see the module. `summary` says in one sentence what it is."""

    name: str
    library: str
    version: str
    summary: str
    algorithm: Mapping[str, Any]
    checked: Literal["executed", "read"]
    differences: tuple[str, ...]


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
    table = file["presets"][name]
    return Preset(
        name=f"{name}@{file['key']}",
        library=file["library"],
        version=file["version"],
        summary=table["summary"],
        algorithm=table["algorithm"],
        checked=table["checked"],
        differences=tuple(table.get("differences", ())),
    )


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
