"""The page of all settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import attrs

from docs.generate.markdown import settings
from purerl.config.schema import RunConfig
from purerl.plugins import find, names

__all__ = ["pages"]

_PLUGINS = ("trainer", "generator", "tracker", "reward")
_INTRODUCTION = """\
A recipe sets these settings. `purerl train RECIPE --set KEY=VALUE` changes them. A dot separates a section from its
fields: `--set rollout.samples_per_prompt=8`. The settings of an algorithm are on
[its own page](../algorithms/index.md), and those of its modifiers on [theirs](../../how-to/modifiers.md).

The settings of a trainer, a generator, a tracker or a reward depend on its `kind`. `trackers`, `rewards` and `gates`
are lists: each entry has a `kind` and the settings of that kind. A reward can also be a function."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page."""
    yield "index", _page()


def _page() -> str:
    """A table for `RunConfig`, for each of its sections, and for each kind of the plugins and its sections."""
    titles: dict[type, list[str]] = {RunConfig: ["A run"]}
    for key, section in _sections(RunConfig):
        titles.setdefault(section, []).append(f"`{key}`")
    plugins = {(group, kind): find(group, kind).Config for group in _PLUGINS for kind in names(group)}
    titles |= {config: [f"{group.title()} `{kind}`"] for (group, kind), config in plugins.items()}
    for (group, kind), config in plugins.items():
        for key, section in _sections(config):
            titles.setdefault(section, []).append(f"`{key}` of the {group} `{kind}`")
    tables = {", ".join(keys): section for section, keys in titles.items()}
    sections = [f"## {title}\n\n{settings(section)}" for title, section in tables.items()]
    return "\n\n".join([f"# Settings of a run\n\n{_INTRODUCTION}", *sections]) + "\n"


def _sections(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, class) of each section of the attrs class `config`. `<name>` stands for any key of a mapping."""
    for field in attrs.fields(attrs.resolve_types(config)):
        if "plugin" in field.metadata:  # its settings depend on its kind
            continue
        paths: dict[Any, str] = {}
        for path, section in _classes(field.type):
            paths.setdefault(section, path)
        for section, path in paths.items():
            key = f"{prefix}{field.name}{path}"
            if section is not RunConfig:  # initial_run has the settings of a run
                yield key, section
                yield from _sections(section, f"{key}.")


def _classes(kind: Any) -> Iterator[tuple[str, Any]]:
    """The attrs classes in the type `kind`, each with the path to it: "" for the value itself or an item of a list."""
    if attrs.has(kind):
        yield "", kind
        return
    is_mapping = getattr(kind, "__origin__", None) in (dict, Mapping)
    for choice in get_args(kind):
        yield from ((".<name>" + path if is_mapping else path, section) for path, section in _classes(choice))
