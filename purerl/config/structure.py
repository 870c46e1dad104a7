"""Conversion of configurations to tables and TOML, and back; strict, with the dotted key in every error.

A frozen attrs class becomes a dict that TOML can express, without loss: a field whose value is None is left out, so
only a field whose default is None may be None. Field metadata change how a field is read and written:

    plugin   the field holds the Config of a plugin: a table with its `kind` and the fields of that Config; a string in
             place of a table is the kind alone. If the field is a tuple, it holds several. The field of an algorithm
             holds a `Composition`: the table may also have modifiers, see `split_modifiers`
    inline   the `kind` and the settings of the plugin are in the table of the class itself, beside its other fields
    short    a string in place of the whole section is this field; with `list`, its only element
    read     a function that converts other ways to write the value

A class may have a static method `_prepare_table`, which changes the table before it is read, and `_find_missing`, which
gives errors for further settings that are missing in a table that is refused. In a field of type
``Mapping[str, Section | Mapping[str, Section]]`` a table of tables is a table of sections, unless one of them has the
name of a field of the section and other keys than these fields. Every other table is a section.

Nothing is converted except an integer for a float: 8.7 is not an integer, true is not 1, "1" is not an integer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
import tomli_w
from cattrs import Converter
from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from purerl.composition import Composition
from purerl.config.keys import MAX_ERRORS, inline_field, joined, section_in, settings_below, unknown
from purerl.config.modifiers import key_of, split_modifiers
from purerl.config.presets import defaults_of, expand
from purerl.config.tables import SHORT, UNSET, Table, flat, read_table, show, with_kind
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of, names
from purerl.settings import missing, with_key

__all__ = ["digest", "dumps", "from_dict", "read_toml", "to_dict"]

T = TypeVar("T")


def to_dict(config: Any) -> Table:
    """`config` as nested dicts and lists of numbers, strings and booleans.

    Raises: ConfigError for a None that is not the field's default.
    """
    return _CONVERTER.unstructure(config)


def from_dict(cls: type[T], table: Mapping[str, Any]) -> T:
    """The instance of `cls` that `table` describes; the inverse of `to_dict`.

    Raises: ConfigError that lists every setting that is unknown, missing, of another type or invalid.
    """
    try:
        return _CONVERTER.structure(table, cls)
    except BaseValidationError as error:
        raise joined(islice(_errors(error, table), MAX_ERRORS)) from error


def read_toml(path: str | Path, cls: type[T]) -> T:
    """The instance of `cls` in the TOML file at `path`. Raises ConfigError as `read_table` and `from_dict`."""
    table = read_table(path)
    try:
        return from_dict(cls, table)
    except ConfigError as error:
        in_file = ConfigError(f"{str(path)!r}\n{error}")
        in_file.parts = error.parts or (error,)
        raise in_file from error


def dumps(config: Any) -> str:
    """`config` as TOML; the inverse of `read_toml`."""
    return tomli_w.dumps(to_dict(config))


def digest(config: Any) -> str:
    """A hash of all settings: equal in every process and for every order of fields."""
    # Converted back first, so that an integer in place of a float gives the same digest.
    table = to_dict(from_dict(type(config), to_dict(config)))
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


# --- reading -------------------------------------------------------------------------------------------------------
# Hooks raise a ConfigError without a key; `_errors` adds the key of the setting that they read.

_SCALARS = {
    bool: ("true or false", "write it without quotes"),
    int: ("an integer", "write only its digits, as 8"),
    float: ("a number", "write it as 0.5 or 1e-3, without quotes"),
    str: ("a string", "put it in quotes"),
}


def _read_scalar(value: Any, kind: type) -> Any:
    if type(value) is not kind and (kind is not float or type(value) is not int):
        need, do = _SCALARS[kind]
        inner = [key for key in value if key != SHORT] if isinstance(value, Mapping) else []
        do = f"leave out its settings: {', '.join(inner)}" if inner else do
        raise ConfigError("", got=show(value), need=need, do=do)
    return kind(value)


def _read_literal(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ConfigError("", got=show(value), need="one of: " + ", ".join(map(str, choices)))
    return value


def _read_tuple(value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("", got=show(value), need="a list, in square brackets")
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ConfigError("", got=show(value), need=f"a list of {len(kinds)}")
    return tuple(_CONVERTER.structure(item, kind) for item, kind in zip(value, kinds, strict=True))


def _read_mapping(value: Any, kind: Any) -> Table:
    if not isinstance(value, Mapping) or SHORT in value:
        raise ConfigError("", got=show(value), need="a section: keys and values")
    items, section = {key: item for key, item in value.items() if item is not UNSET}, section_in(get_args(kind)[1])
    if section is None:
        return items
    readers = [
        (key, partial(_CONVERTER.structure, item, Mapping[str, section] if _has_sections(item, section) else section))
        for key, item in items.items()
    ]
    return dict(zip(items, _read_all(readers, section), strict=True))


def _has_sections(table: Any, section: type) -> bool:
    """Whether `table` is a table of sections, and no section itself."""
    fields = attrs.fields_dict(section).keys()
    return (
        isinstance(table, Mapping)
        and bool(table)
        and all(isinstance(inner, Mapping) for inner in table.values())
        and all(name not in fields or (inner and inner.keys() <= fields) for name, inner in table.items())
    )


def _read_all(readers: Iterable[tuple[str, Callable[[], Any]]], cls: type) -> list[Any]:
    """The results of the readers. Errors of all of them are collected, each with the key of its reader in `cls`.

    The key may be empty: then the error is about the table that the readers read parts of.
    """
    results, errors = [], []
    for key, read in readers:
        try:
            results.append(read())
        except (BaseValidationError, ConfigError) as error:
            notes = [AttributeValidationNote("", key, cls)] if key else []
            error.__notes__ = [*getattr(error, "__notes__", []), *notes]
            errors.append(error)
    if errors:
        raise BaseValidationError("sections", errors, cls)  # pyright: ignore[reportCallIssue] - typed as its base
    return results


def _is_section_or_string(kind: Any) -> bool:
    """Whether `kind` is like ``str | Model``."""
    return get_origin(kind) in (Union, UnionType) and str in get_args(kind) and section_in(kind) is not None


def _read_class(cls: type, converter: Converter) -> Any:
    known, prepare = attrs.fields_dict(attrs.resolve_types(cls)), getattr(cls, "_prepare_table", dict)
    inline = inline_field(cls)
    hooks = {name: override(struct_hook=hook) for name, field in known.items() if (hook := _hook(field))}
    read = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, **hooks)
    short = {name: field.metadata["short"] for name, field in known.items() if field.metadata.get("short")}

    def structure(value: Any, kind: Any) -> Any:
        table = {SHORT: value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or (SHORT in table and not short):
            raise ConfigError("", got=show(value), need="a section: keys and values")
        table = {key: item for key, item in table.items() if item is not UNSET or key not in known}
        if SHORT in table:
            string = table.pop(SHORT)
            table = {name: [string] if form is list else string for name, form in short.items()} | table
        if inline:
            table = _with_plugin(table, inline, cls)
        for name in table.keys() - known.keys():  # so that errors have the whole key
            table |= flat({name: table.pop(name)}) or {name: {}}
        try:
            return read(prepare(table), kind)
        except BaseValidationError as error:
            more = [*getattr(cls, "_find_missing", lambda table: ())(table)]
            raise (error.derive([*error.exceptions, *more]) if more else error) from error.__cause__

    return structure


def _settings_of(cls: type) -> set[str]:
    """The names of the settings of `cls`, without those of a plugin that are written beside them."""
    return {*attrs.fields_dict(cls)} - {inline_field(cls)}


def _with_plugin(table: Table, inline: str, cls: type) -> Table:
    """The table of `cls` with the kind and the settings of a plugin in a table of their own, the field `inline`."""
    beside = _settings_of(cls)
    if "kind" in table:
        own = {key: item for key, item in table.items() if key in beside}
        return {**own, inline: {key: item for key, item in table.items() if key not in beside}}
    if inline in table:
        raise ForbiddenExtraKeysError("", cls, {inline})
    return table


def _hook(field: attrs.Attribute) -> Any:
    """The function that reads `field`, if its metadata change how it is read."""
    if group := field.metadata.get("plugin"):
        if group == "algorithm":
            return _read_composition
        return partial(_read_plugins if get_origin(field.type) is tuple else _read_plugin, group=group)
    return partial(_read_converted, convert=field.metadata["read"]) if "read" in field.metadata else None


def _read_converted(value: Any, kind: Any, *, convert: Any) -> Any:
    try:
        return _CONVERTER.structure(convert(value), kind)
    except (AttributeError, TypeError) as error:
        raise ConfigError("", got=show(value), need="a string, a list of strings, or a section") from error


def _read_plugin(value: Any, _: Any, *, group: str) -> Any:
    value = with_kind(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        given = {key: item for key, item in value.items() if item is not UNSET} if isinstance(value, Mapping) else value
        raise ConfigError("kind is missing", got=show(given), need="one of: " + ", ".join(names(group)))
    try:
        plugin = find(group, value["kind"])
    except ConfigError as error:
        raise ConfigError(f"kind: {error}") from error
    return _CONVERTER.structure({key: item for key, item in value.items() if key != "kind"}, plugin.Config)


def _read_plugins(value: Any, _: Any, *, group: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("", got=show(value), need="a list of sections, each with its kind")
    return tuple(_read_plugin(table, _, group=group) for table in value)


def _read_composition(value: Any, _: Any) -> Composition:
    value = with_kind(value)
    is_plugin = isinstance(value, Mapping) and isinstance(value.get("kind"), str)
    table, modifiers = split_modifiers(expand(value), defaults_of(value["kind"])) if is_plugin else (value, [])
    readers = [("", partial(_read_plugin, table, _, group="algorithm"))]
    readers += [(key_of(each["kind"]), partial(_read_plugin, each, _, group="modifier")) for each in modifiers]
    base, *rest = _read_all(readers, Composition)
    return Composition(base, tuple(rest))


# --- writing -------------------------------------------------------------------------------------------------------


def _write_class(cls: type, converter: Converter) -> Any:
    fields, inline = attrs.fields(attrs.resolve_types(cls)), inline_field(cls)
    hooks = {field.name: override(unstruct_hook=_write_plugin) for field in fields if "plugin" in field.metadata}
    write = make_dict_unstructure_fn(cls, converter, **hooks)

    def unstructure(config: Any) -> Table:
        for field in fields:
            if getattr(config, field.name) is None and field.default is not None:
                need = "a value: TOML has no None, so only a field whose default is None may be None"
                raise ConfigError(field.name, got=f"None in {cls.__qualname__}", need=need)
        table = {key: value for key, value in write(config).items() if value is not None}
        return {**table.pop(inline, {}), **table} if inline else table

    return unstructure


def _write_plugin(config: Any) -> Any:
    """The table of a plugin's Config with its kind, or a list of such tables; of a composition, with its modifiers."""
    if isinstance(config, Composition):
        modifiers = {"modifiers": _write_plugin(config.modifiers)} if config.modifiers else {}
        return _write_plugin(config.base) | modifiers
    if isinstance(config, tuple):
        return [*map(_write_plugin, config)]
    return None if config is None else {"kind": kind_of(config)} | _CONVERTER.unstructure(config)


_CONVERTER = Converter(unstruct_collection_overrides={tuple: list})
for _kind in _SCALARS:
    _CONVERTER.register_structure_hook(_kind, _read_scalar)
_CONVERTER.register_structure_hook_func(lambda kind: get_origin(kind) is Literal, _read_literal)
_CONVERTER.register_structure_hook_func(lambda kind: get_origin(kind) is tuple, _read_tuple)
_CONVERTER.register_structure_hook_func(lambda kind: get_origin(kind) is Mapping, _read_mapping)
_CONVERTER.register_structure_hook_func(
    _is_section_or_string, lambda value, kind: _CONVERTER.structure(value, section_in(kind))
)
_CONVERTER.register_structure_hook_factory(attrs.has, _read_class)
_CONVERTER.register_unstructure_hook_factory(attrs.has, _write_class)


# --- errors ------------------------------------------------------------------------------------------------------


def _errors(
    error: BaseException, table: Any, above: tuple[str, ...] = (), cls: Any = None, beside: Collection[str] = ()
) -> Iterator[ConfigError]:
    """One error for each setting that `error` is about; it was raised at the key `above`, in `cls`.

    `table` is what was read there, if it is known. `beside` are settings that may be written beside those of `cls`.
    """
    notes = [note.name for note in getattr(error, "__notes__", ()) if isinstance(note, AttributeValidationNote)]
    inline = inline_field(cls) if attrs.has(cls) else None
    keys = above + tuple(name for name in notes if name != inline)
    if notes:
        beside = _settings_of(cls) if inline in notes else ()
        table = reduce(_below, notes, table)
    key = ".".join(keys)
    match error:
        case BaseValidationError():
            for inner in error.exceptions:
                yield from _errors(inner, table, keys, error.cl, beside)
        case ForbiddenExtraKeysError():
            modifiers = {"modifiers", *names("modifier")} if keys[-1:] == ("algorithm",) else set()
            for name in sorted(error.extra_fields):
                known = {*_settings_of(error.cl), *modifiers, *beside, *(["kind"] if inline_field(error.cl) else [])}
                below = settings_below(error.cl) if keys else ()
                value = reduce(_below, name.split("."), table)
                yield unknown(".".join((*keys, name)), name.partition(".")[0], known, below, value)
        case KeyError() if keys != above:
            metadata = attrs.fields_dict(cls)[keys[-1]].metadata
            yield missing(key, metadata.get("help", "a value"), metadata.get("example", ""))
        case ConfigError():
            yield with_key(key, error, cls)
        case _:
            yield ConfigError(key, got=error.args[0] if error.args else repr(error))


def _below(table: Any, name: str) -> Any:
    """The value of `name` in `table`; attrs.NOTHING if it is not known."""
    return table.get(name, attrs.NOTHING) if isinstance(table, Mapping) else attrs.NOTHING
