"""Configurations as plain tables, and back: strict, and with the dotted key in every error.

A frozen attrs class becomes a dict that TOML can hold, and nothing that TOML cannot say is lost in between: a field
whose value is None is left out, so only a field whose default is None may hold it. A field with the metadata
``{"plugin": group}`` holds some plugin's Config; it is written as a table with its ``kind`` and that Config's fields.
Where the field is a tuple it holds several, and a text in place of a table is the kind alone.
A class with a field of the metadata ``{"short": True}`` can be read from a text in place of its table: that field's;
with ``{"short": list}``, the only text of that field's. Where a text or such a class is declared, ``str | Model``, a
text is read in the same way. A field with the metadata ``{"read": function}`` can be said in other ways: what
`function` makes of them is read.

Nothing is converted on the way but an int where a float is declared: 8.7 is no int, true is no int, "1" is no int.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
import tomli_w
from cattrs import Converter
from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from purerl.errors import ConfigError, nearest
from purerl.plugins import find, kind_of, names

__all__ = [
    "apply",
    "build",
    "differences",
    "digest",
    "dumps",
    "flat",
    "from_dict",
    "read_table",
    "read_toml",
    "to_dict",
    "unknown",
]

T = TypeVar("T")
Table = dict[str, Any]

_DEFAULT = object()
"""Stands in a table for a setting that is to go back to its default."""

_TEXT = ""
"""The key, in a section's table, of a text that was given in the section's place."""


def to_dict(config: Any) -> Table:
    """`config` as nested dicts and lists of numbers, texts and truth values.

    Raises: ConfigError for a None that is not the field's default.
    """
    return _CONVERTER.unstructure(config)


def from_dict(cls: type[T], table: Mapping[str, Any]) -> T:
    """The instance of `cls` that `table` says; the inverse of `to_dict`.

    Raises: ConfigError that lists every setting that is unknown, missing, of another type or refused by its class.
    """
    try:
        return _CONVERTER.structure(table, cls)
    except BaseValidationError as error:
        raise ConfigError("\n".join(_problems(error))) from error


def apply(config: T, settings: Iterable[str]) -> T:
    """`config` with `settings` made, each a text ``dotted.key=value``.

    A value is read as TOML reads it; what is not TOML is a text. Nothing after the ``=`` takes the setting back to its
    default. In whatever order they are given, a section comes before the settings in it, and a `kind`, from whose
    defaults its table starts, before those beside it; of two settings of one key the last holds. A section that was
    None comes to be with the first setting in it.

    Raises: ConfigError for a setting without ``=``, and as `from_dict`.

    >>> from purerl.protocols import Sampling
    >>> apply(Sampling(), ["max_tokens=8", 'stop_strings=["."]'])
    Sampling(temperature=1.0, max_tokens=8, stop_tokens=(), stop_strings=('.',))
    """
    return from_dict(type(config), _made(to_dict(config), settings))


def build(cls: type[T], settings: Iterable[str]) -> T:
    """The instance of `cls` that `settings` say, and nothing else; texts as of `apply`, which see.

    >>> from purerl.protocols import Model
    >>> build(Model, ["path=gpt2", "attention=eager"]).attention
    'eager'
    """
    return from_dict(cls, _made({}, settings))


def read_toml(path: str | Path, cls: type[T]) -> T:
    """The instance of `cls` that the TOML file at `path` says.

    Raises: ConfigError as `read_table` and `from_dict`.
    """
    table = read_table(path)
    try:
        return from_dict(cls, table)
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}\n{error}") from error


def read_table(path: str | Path) -> Table:
    """What the TOML file at `path` says. Raises: ConfigError where it cannot be read or is no TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read", got=str(error), need="a TOML file") from error


def dumps(config: Any) -> str:
    """`config` as TOML; `read_toml` gives it back."""
    return tomli_w.dumps(to_dict(config))


def digest(config: Any) -> str:
    """A hash of everything that `config` says: equal in every process and for every order of fields."""
    # There and back again, so that an int in a float's place is the same as the float.
    said = to_dict(from_dict(type(config), to_dict(config)))
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def differences(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """(key, value in `a`, value in `b`) of every setting in which they differ; None where it is not set."""
    left, right = flat(to_dict(a)), flat(to_dict(b))
    keys = dict.fromkeys([*left, *right])
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def flat(table: Table) -> dict[str, Any]:
    """The values in `table` and the tables in it, by dotted key.

    >>> flat({"trainer": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": 0})
    {'trainer.lr': 0.1, 'trainer.betas': [0.9, 0.99], 'seed': 0}
    """
    found = {}
    for key, value in table.items():
        found |= {f"{key}.{k}": v for k, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return found


# --- settings ----------------------------------------------------------------------------------------------------


def _made(table: Table, settings: Iterable[str]) -> Table:
    for keys, text in sorted(map(_parse, settings), key=lambda setting: (len(setting[0]), setting[0][-1] != "kind")):
        _set(table, keys, text)
    return table


def _parse(setting: str) -> tuple[list[str], str]:
    key, equals, value = setting.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"setting {setting!r}", need="key=value, such as trainer.lr=1e-3")
    return keys, value.strip()


def _set(table: Table, keys: Sequence[str], text: str) -> None:
    *sections, key = keys
    for depth, section in enumerate(sections, start=1):
        inner = table.get(section, _DEFAULT)
        table[section] = {} if inner is _DEFAULT else {_TEXT: inner} if isinstance(inner, str) else inner
        table = table[section]
        if not isinstance(table, dict):
            raise ConfigError(".".join(keys), got=f"{'.'.join(keys[:depth])} is {_show(table)}", need="a section")
    value = _value(text) if text else _DEFAULT
    if key == "kind" and table.get("kind") != value:
        table.clear()
    table[key] = value


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


# --- the converter -----------------------------------------------------------------------------------------------
# Hooks raise a ConfigError that names nothing; `_problems` knows where they were called.


def _scalar(kind: type, need: str, do: str | None = None) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            within = [key for key in value if key != _TEXT] if isinstance(value, Mapping) else []
            remedy = f"leave out what is set within it: {', '.join(within)}" if within else do
            raise ConfigError("", got=_show(value), need=need, do=remedy)
        return value

    return structure


def _float(value: Any, _: Any) -> float:
    if type(value) not in (int, float):
        raise ConfigError("", got=_show(value), need="a number", do="write it as 0.5 or 1e-3, without quotes")
    return float(value)


def _literal(value: Any, kind: Any) -> Any:
    choices = {str(choice): choice for choice in get_args(kind)}
    if not any(type(value) is type(choice) and value == choice for choice in choices.values()):
        raise ConfigError("", got=_show(value), need="one of: " + ", ".join(choices))
    return value


def _tuple(value: Any, kind: Any, *, converter: Converter) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("", got=_show(value), need="a list, in square brackets")
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ConfigError("", got=_show(value), need=f"a list of {len(kinds)}")
    return tuple(converter.structure(item, kind) for item, kind in zip(value, kinds, strict=True))


def _mapping(value: Any, _: Any) -> Table:
    if not isinstance(value, Mapping) or _TEXT in value:
        raise ConfigError("", got=_show(value), need="a section: keys and values")
    return {key: item for key, item in value.items() if item is not _DEFAULT}


def _plugins(cls: type) -> dict[str, tuple[str, Any, Any]]:
    """For each field that holds plugins' Configs: their group, what reads it and what writes it."""
    fields = [field for field in attrs.fields(attrs.resolve_types(cls)) if "plugin" in field.metadata]
    hooks = {True: (_read_plugins, _write_plugins), False: (_read_plugin, _write_plugin)}
    return {field.name: (field.metadata["plugin"], *hooks[get_origin(field.type) is tuple]) for field in fields}


def _read_class(cls: type, converter: Converter) -> Any:
    overrides = {
        name: override(struct_hook=partial(read, group=group, converter=converter))
        for name, (group, read, _) in _plugins(cls).items()
    }
    reads = {field.name: field.metadata["read"] for field in attrs.fields(cls) if "read" in field.metadata}
    for name, function in reads.items():
        overrides[name] = override(struct_hook=partial(_read_said, function=function, converter=converter))
    read = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, **overrides)
    known = attrs.fields_dict(cls)
    short = {name: field.metadata["short"] for name, field in known.items() if field.metadata.get("short")}

    def structure(value: Any, kind: Any) -> Any:
        table = {_TEXT: value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or (_TEXT in table and not short):
            raise ConfigError("", got=_show(value), need="a section: keys and values")
        said = {key: item for key, item in table.items() if item is not _DEFAULT or key not in known}
        if _TEXT in said:
            text = said.pop(_TEXT)
            said = {name: [text] if form is list else text for name, form in short.items()} | said
        return read(said, kind)

    return structure


def _section_of(kind: Any) -> type | None:
    """The class in ``str | Model``; None where `kind` is no such choice."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    return next((choice for choice in choices if attrs.has(choice)), None) if str in choices else None


def _read_said(value: Any, kind: Any, *, function: Any, converter: Converter) -> Any:
    try:
        return converter.structure(function(value), kind)
    except (AttributeError, TypeError) as error:
        raise ConfigError("", got=_show(value), need="a text, a list of texts, or a section") from error


def _read_plugin(value: Any, _: Any, *, group: str, converter: Converter) -> Any:
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise ConfigError("kind is missing", got=_show(value), need="one of: " + ", ".join(names(group)))
    try:
        plugin = find(group, value["kind"])
    except ConfigError as error:
        raise ConfigError(f"kind: {error}") from error
    return converter.structure({key: item for key, item in value.items() if key != "kind"}, plugin.Config)


def _read_plugins(value: Any, _: Any, *, group: str, converter: Converter) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("", got=_show(value), need="a list of sections, each with its kind")
    tables = [{"kind": item} if isinstance(item, str) else item for item in value]
    return tuple(_read_plugin(table, _, group=group, converter=converter) for table in tables)


def _write_class(cls: type, converter: Converter) -> Any:
    overrides = {
        name: override(unstruct_hook=partial(write, converter=converter))
        for name, (_, _, write) in _plugins(cls).items()
    }
    write = make_dict_unstructure_fn(cls, converter, **overrides)

    def unstructure(config: Any) -> Table:
        for field in attrs.fields(cls):
            if getattr(config, field.name) is None and field.default is not None:
                need = "a value: TOML has no None, so only a field whose default is None may hold it"
                raise ConfigError(field.name, got=f"None in {cls.__qualname__}", need=need)
        return {key: value for key, value in write(config).items() if value is not None}

    return unstructure


def _write_plugin(config: Any, *, converter: Converter) -> Table | None:
    return None if config is None else {"kind": kind_of(config)} | converter.unstructure(config)


def _write_plugins(configs: Any, *, converter: Converter) -> list[Table | None]:
    return [_write_plugin(config, converter=converter) for config in configs]


def _converter() -> Converter:
    made = Converter(unstruct_collection_overrides={tuple: list})
    made.register_structure_hook(bool, _scalar(bool, "true or false", do="write it without quotes"))
    made.register_structure_hook(int, _scalar(int, "a whole number", do="write its digits alone, as 8"))
    made.register_structure_hook(str, _scalar(str, "a text", do="put it in quotes"))
    made.register_structure_hook(float, _float)
    made.register_structure_hook_func(lambda kind: get_origin(kind) is Literal, _literal)
    made.register_structure_hook_func(lambda kind: get_origin(kind) is tuple, partial(_tuple, converter=made))
    made.register_structure_hook_func(lambda kind: get_origin(kind) is Mapping, _mapping)
    made.register_structure_hook_func(
        lambda kind: _section_of(kind) is not None, lambda value, kind: made.structure(value, _section_of(kind))
    )
    made.register_structure_hook_factory(attrs.has, _read_class)
    made.register_unstructure_hook_factory(attrs.has, _write_class)
    return made


_CONVERTER = _converter()


# --- errors ------------------------------------------------------------------------------------------------------


def _problems(error: BaseException, above: tuple[str, ...] = (), cls: Any = None) -> Iterator[str]:
    """What `error` says, one text for each setting; `above` is where, in `cls`, it came up."""
    notes = getattr(error, "__notes__", ())
    here = above + tuple(note.name for note in notes if isinstance(note, AttributeValidationNote))
    key = ".".join(here)
    match error:
        case BaseValidationError():
            for inner in error.exceptions:
                yield from _problems(inner, here, error.cl)
        case ForbiddenExtraKeysError():
            for name in sorted(error.extra_fields):
                yield str(unknown(".".join((*here, name)), name, attrs.fields_dict(error.cl)))
        case KeyError() if here != above:
            yield str(ConfigError(f"{key} is missing", need=attrs.fields_dict(cls)[here[-1]].metadata.get("help")))
        case ConfigError():
            yield _named(key, str(error), {"kind", *attrs.fields_dict(cls)})
        case _:
            yield str(ConfigError(key, got=error.args[0] if error.args else repr(error)))


def unknown(key: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error that there is no setting `key`, whose last part, `name`, is none of the `known`."""
    need = "one that `purerl config` lists"
    return ConfigError(key, got="no such setting", need=need, do=nearest(name, known))


def _named(key: str, message: str, fields: set[str]) -> str:
    """`message` about what is at `key`: it begins with one of its fields, with nothing, or with other words."""
    first = message.split(maxsplit=1)[0].rstrip(":") if message[:1].strip() else ""
    joint = "." if first in fields else ": " if first else ""
    return f"{key}{joint}{message}" if key else message


def _show(value: Any) -> str:
    if isinstance(value, Mapping) and _TEXT in value:
        rest = {key: item for key, item in value.items() if key != _TEXT}
        return f"{_show(value[_TEXT])} and {_show(rest)}"
    return json.dumps(value, default=str)
