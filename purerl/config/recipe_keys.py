"""Keys in a TOML file and in settings of a recipe, checked before the recipe is imported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import fields_dict

from purerl.config.keys import MAX_ERRORS, Key, Kinds, Translate, find_unknown, joined, settings_in, unknown
from purerl.config.overrides import parse, read_value
from purerl.config.presets import expand
from purerl.config.schema import RunConfig
from purerl.config.tables import Table, with_kind
from purerl.errors import ConfigError
from purerl.plugins import addresses
from purerl.system.static_inspect import imported_modules

__all__ = ["check_file_keys", "check_names", "check_recipe_keys"]


def check_file_keys(path: str, table: Table, settings: Iterable[str], translate: Translate) -> None:
    """Raise ConfigError for unknown keys in `table`, the content of the TOML file at `path`, and in `settings`."""
    in_file = partial(_kinds_in_table, table)
    errors = []
    if found := find_unknown(RunConfig, settings_in(table), in_file, translate):
        errors.append(ConfigError(f"{path!r}\n{joined(found)}"))
    if found := find_unknown(RunConfig, _values(settings), _with_set_kinds(settings, in_file), translate):
        errors.append(ConfigError(f"--set\n{joined(found)}") if errors else joined(found))
    if errors:
        raise joined(errors)


def check_recipe_keys(
    settings: Iterable[str], parameters: Collection[str], translate: Translate, *, source: Path | None
) -> None:
    """Raise ConfigError for unknown keys in `settings` of a recipe with these `parameters`.

    `source` is the file of a recipe that creates its plugins itself: they are among those that it imports. None if the
    plugins are not known.
    """
    known = {*parameters, *_FIELDS}
    kinds = _with_set_kinds(settings, partial(_kinds_in_source, source))
    others = [(keys, value) for keys, value in _values(settings) if keys[0] in known - {*parameters}]
    errors = [*_unknown_names(settings, known, translate), *find_unknown(RunConfig, others, kinds, translate)]
    if errors:
        raise joined(errors)


def check_names(settings: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError for settings whose first part is not in `known`, which includes arguments of the recipe."""
    if errors := _unknown_names(settings, known, lambda given: {}):
        raise joined(errors)


_FIELDS = fields_dict(RunConfig).keys()


def _unknown_names(settings: Iterable[str], known: Collection[str], translate: Translate) -> list[ConfigError]:
    unknown_values = ((keys, value) for keys, value in _values(settings) if keys[0] not in known)
    found = {".".join(map(str, keys)): (str(keys[0]), value) for keys, value in islice(unknown_values, MAX_ERRORS)}
    lines = translate({key: value for key, (_, value) in found.items()}) if found else {}
    return [unknown(key, name, known, (), value, lines.get(key, "")) for key, (name, value) in found.items()]


def _values(settings: Iterable[str]) -> list[tuple[list[str], Any]]:
    """Key and value of each of `settings`, and of everything in the tables that they set."""
    found = []
    for keys, text in map(parse, settings):
        value = read_value(text)
        inner = value if isinstance(value, list | Mapping) else {}
        found.append((keys, value)) if not isinstance(value, Mapping) or not value else None
        found += [((*keys, *key[1:]), part) for key, part in settings_in({"": inner}) if len(key) > 1]
    return found


def _with_set_kinds(settings: Iterable[str], otherwise: Kinds) -> Kinds:
    """The kinds that `settings` choose, and `otherwise` those of the recipe."""
    chosen = {}
    for keys, text in map(parse, settings):
        chosen[".".join(keys[:-1] if keys[-1] == "kind" else keys)] = _kind(text.strip("\"'"))

    def kinds(section: Key, group: str) -> Collection[str]:
        name = ".".join(map(str, section))
        return [chosen[name]] if chosen.get(name) else otherwise(section, group)

    return kinds


def _kinds_in_table(table: Table, section: Key, group: str) -> Collection[str]:
    found: Any = table
    for part in section:
        if isinstance(found, list):
            found = found[part] if isinstance(part, int) else None
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    found = with_kind(found)
    kind = found.get("kind") if isinstance(found, Mapping) else None
    return [_kind(kind)] if isinstance(kind, str) else []


def _kinds_in_source(source: Path | None, section: Key, group: str) -> Collection[str]:
    imported = {*imported_modules(source).values()} if source else set()
    return [kind for kind, address in addresses(group).items() if address in imported]


def _kind(name: str) -> str:
    """The kind of an algorithm; of a preset, that of its algorithm."""
    try:
        return str(expand({"kind": name})["kind"])
    except ConfigError:  # reported when the configuration is read
        return name
