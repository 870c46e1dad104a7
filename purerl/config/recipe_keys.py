"""Keys in a TOML file and in settings of a recipe, checked before the recipe is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import fields_dict

from purerl.config.keys import Kinds, check_keys, keys_of, unknown
from purerl.config.overrides import parse
from purerl.config.presets import expand
from purerl.config.schema import RunConfig
from purerl.config.tables import Table, with_kind
from purerl.errors import ConfigError
from purerl.plugins import addresses
from purerl.system.static_inspect import imported_modules

__all__ = ["check_file_keys", "check_names", "check_recipe_keys"]


def check_file_keys(path: str, table: Table, settings: Iterable[str]) -> None:
    """Raise ConfigError for unknown keys in `table`, the content of the TOML file at `path`, or in `settings`."""
    in_file = partial(_kinds_in_table, table)
    try:
        check_keys(RunConfig, keys_of(table), in_file)
    except ConfigError as error:
        raise ConfigError(f"{path!r}\n{error}") from error
    check_keys(RunConfig, _keys(settings), _with_set_kinds(settings, in_file))


def check_recipe_keys(settings: Iterable[str], parameters: Collection[str], *, source: Path | None) -> None:
    """Raise ConfigError for unknown keys in `settings` of a recipe with these `parameters`.

    `source` is the file of a recipe that creates its plugins itself: they are among those that it imports. None if the
    plugins are not known.
    """
    check_names(settings, {*parameters, *_FIELDS})
    keys = [key for key in _keys(settings) if key[0] not in parameters]
    check_keys(RunConfig, keys, _with_set_kinds(settings, partial(_kinds_in_source, source)))


def check_names(settings: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for a setting whose first part is not in `known`, which includes arguments of the recipe."""
    for setting in settings:
        keys, _ = parse(setting)
        if keys[0] not in known:
            raise unknown(setting.partition("=")[0].strip(), keys[0], known)


_FIELDS = fields_dict(RunConfig).keys()


def _keys(settings: Iterable[str]) -> list[Sequence[str]]:
    return [parse(setting)[0] for setting in settings]


def _with_set_kinds(settings: Iterable[str], otherwise: Kinds) -> Kinds:
    """The kinds that `settings` choose, and `otherwise` those of the recipe."""
    chosen = {}
    for keys, text in map(parse, settings):
        chosen[".".join(keys[:-1] if keys[-1] == "kind" else keys)] = _kind(text.strip("\"'"))

    def kinds(section: str, group: str) -> Collection[str]:
        return [chosen[section]] if chosen.get(section) else otherwise(section, group)

    return kinds


def _kinds_in_table(table: Table, section: str, group: str) -> Collection[str]:
    found: Any = table
    for name in section.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    found = with_kind(found)
    kind = found.get("kind") if isinstance(found, Mapping) else None
    return [_kind(kind)] if isinstance(kind, str) else []


def _kinds_in_source(source: Path | None, section: str, group: str) -> Collection[str]:
    imported = {*imported_modules(source).values()} if source else set()
    return [kind for kind, address in addresses(group).items() if address in imported]


def _kind(name: str) -> str:
    """The kind of an algorithm; of a preset, that of its algorithm."""
    try:
        return str(expand({"kind": name})["kind"])
    except ConfigError:  # reported when the configuration is read
        return name
