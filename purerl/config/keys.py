"""Keys of settings, checked without importing torch or anything that a configuration names.

The fields of a section are those of its class, and the fields of a plugin are read from its source code. So a
misspelled key is reported at once. If the fields of a section are not known, its keys are accepted here, and checked
when the configuration is read.

An item of a list, such as `rewards`, is named by its index or its name: ``rewards.0.weight``. The name is not checked
here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, get_args, get_origin

import attrs

from purerl.config.suggestions import suggestion
from purerl.config.tables import UNSET, write
from purerl.errors import ConfigError
from purerl.plugins import fields_of, names
from purerl.system.credentials import find_credential

__all__ = [
    "EVALUATION_PARAMETERS",
    "MAX_ERRORS",
    "Key",
    "Kinds",
    "Translate",
    "UnknownSettingError",
    "find_unknown",
    "inline_field",
    "is_field",
    "is_plugin",
    "joined",
    "section_in",
    "settings_below",
    "settings_in",
    "unknown",
]

Key = Sequence[str | int]
"""The parts of a dotted key; an integer is the index of an item of a list."""

Translate = Callable[[Mapping[str, Any]], Mapping[str, str]]
"""Values of unknown settings by dotted key -> what to write in place of those of other libraries."""

Kinds = Callable[[Key, str], Collection[str]]
"""(key of a section, group of plugins) -> the kinds that the section may have; empty if they are not known."""

MAX_ERRORS = 100
"""Errors that are looked for at once: each takes a search for similar names."""

_LISTED = "one that `purerl config` lists"

EVALUATION_PARAMETERS = ("top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "regex", "json_schema")
"""Parameters of `purerl.protocols.Sampling` that only evaluations have."""


class UnknownSettingError(ConfigError):
    """A setting that does not exist. `line` is the setting as it was written, `remedy` may be empty."""

    line: str = ""
    remedy: str = ""


def unknown(
    key: str,
    name: str,
    known: Iterable[str],
    elsewhere: Iterable[str] = (),
    value: Any = attrs.NOTHING,
    line: str = "",
) -> ConfigError:
    """The error for an unknown setting `key`, of which the part `name` is unknown.

    known      the settings beside it
    elsewhere  dotted keys of settings in other sections; one of them may have the same name
    value      the value that was set, if it is known
    line       what to write in place of a setting of another library, if it is known
    """
    *sections, last = key.split(".")
    if last in EVALUATION_PARAMETERS and sections[-1:] in ([], ["rollout"], ["generator"]):
        need = (
            "training samples from all tokens, at rollout.temperature: the trainer has their probabilities under the "
            "whole distribution, and the importance ratio to any other one would be biased"
        )
        return ConfigError(key, got="a setting that only evaluations have", need=need, do=f"set evaluate.{last}")
    value = attrs.NOTHING if value is UNSET or find_credential(last, value) else value
    do = suggestion(key, value, name=name, known={*known}, elsewhere=elsewhere, line=line)
    error = UnknownSettingError(key, got="no such setting", need=_LISTED, do=do)
    error.line = key if value is attrs.NOTHING else f"{key} = {write(value)}"
    error.remedy = do or ""
    return error


def joined(errors: Iterable[ConfigError]) -> ConfigError:
    """One error for all of `errors`, of which there is at least one. Several unknown settings are one list.

    The errors themselves are in its attribute `parts`.
    """
    every = {str(error): error for error in errors}
    found = [error for error in every.values() if isinstance(error, UnknownSettingError)]
    texts = [str(error) for error in every.values() if len(found) == 1 or error not in found]
    if len(found) > 1:
        first = "the first " if len(found) >= MAX_ERRORS else ""
        lines = [f"{first}{len(found)} settings that purerl does not have; `purerl config` lists all that it has"]
        for error in found:
            lines += [f"  {error.line}", *([f"    {error.remedy}"] if error.remedy else [])]
        texts.insert(0, "\n".join(lines))
    if len(every) == 1:
        return next(iter(every.values()))
    result = ConfigError("\n".join(texts))
    result.parts = tuple(every.values())
    return result


def find_unknown(
    cls: type, settings: Iterable[tuple[Key, Any]], kinds: Kinds, translate: Translate = lambda given: {}
) -> list[ConfigError]:
    """An error for each of `settings`, key and value, that `cls` cannot have; for the first `MAX_ERRORS` of them."""
    found = ((key, value, place) for key, value in settings if (place := _unknown_at(cls, key, kinds)))
    places = [*islice(found, MAX_ERRORS)]
    lines = translate({_dotted(key): value for key, value, _ in places}) if places else {}
    return [unknown(_dotted(key), *place, value, lines.get(_dotted(key), "")) for key, value, place in places]


def settings_in(table: Mapping[str, Any], above: tuple[str | int, ...] = ()) -> Iterator[tuple[Key, Any]]:
    """Key and value of everything in `table`, in its sub-tables, and in the tables of its lists."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from settings_in(value, (*above, key))
            continue
        yield (*above, key), value
        for index, item in enumerate(value) if isinstance(value, list) else ():
            if isinstance(item, Mapping):
                yield from settings_in(item, (*above, key, index))


def is_plugin(cls: type, key: Key) -> bool:
    """Whether the setting `key` of `cls` is the section of one plugin."""
    names = _names_in(cls, key)
    fields = [*_fields_along(cls, names)]
    return len(fields) == len(names) and _is_plugin(fields[-1])


def is_field(cls: type, key: Key) -> bool:
    """Whether `key` names a field of `cls` or of one of its sections that is not the section of a plugin."""
    names = _names_in(cls, key)
    return len([*_fields_along(cls, names)]) == len(names)


def section_in(kind: Any) -> type | None:
    """The attrs class that the type `kind` is or has among its alternatives."""
    return next((choice for choice in (kind, *get_args(kind)) if isinstance(choice, type) and attrs.has(choice)), None)


def inline_field(cls: type) -> str | None:
    """The name of the field of `cls` whose plugin is written beside the other fields."""
    return next((field.name for field in attrs.fields(cls) if field.metadata.get("inline")), None)


def settings_below(cls: type, *above: type) -> Iterator[str]:
    """The dotted keys of the settings in the sections of `cls`, at any depth, without sections of a class `above`."""
    for name, field in attrs.fields_dict(attrs.resolve_types(cls)).items():
        section = None if _is_list(field) else _section_of(field)
        if section not in (None, cls, *above):
            inner = (*attrs.fields_dict(section), *settings_below(section, cls, *above))
            yield from (f"{name}.{key}" for key in inner)


def _section_of(field: attrs.Attribute) -> type | None:
    """The class of the section, or of an item of the list, that `field` holds; None if its keys are not known."""
    return None if "plugin" in field.metadata or get_origin(field.type) is Mapping else section_in(field.type)


def _is_list(field: attrs.Attribute) -> bool:
    return get_origin(field.type) is tuple


def _is_plugin(field: attrs.Attribute) -> bool:
    return "plugin" in field.metadata and not _is_list(field)


def _places(cls: type, key: Key) -> list[int]:
    """The indices of the parts of `key` that are names of settings, and do not name an item of a list."""
    places, section, selects_item = list[int](), cls, False
    for index, part in enumerate(key):
        if selects_item:
            selects_item = False
            continue
        places.append(index)
        field = attrs.fields_dict(attrs.resolve_types(section)).get(str(part)) if section else None
        section = _section_of(field) if field else None
        selects_item = section is not None and field is not None and _is_list(field)
    return places


def _names_in(cls: type, key: Key) -> list[str]:
    return [str(key[place]) for place in _places(cls, key)]


def _fields_along(cls: type, names: Sequence[str]) -> Iterator[attrs.Attribute]:
    """The fields that `names` of settings lead through, up to the first one that is no section, or unknown."""
    section: type | None = cls
    for name in names:
        field = attrs.fields_dict(attrs.resolve_types(section)).get(name) if section else None
        if field is None:
            return
        yield field
        section = _section_of(field)


def _dotted(key: Key) -> str:
    return ".".join(part for part in key if isinstance(part, str))


_Place = tuple[str, Collection[str], Collection[str]]
"""An unknown part of a key, the names that it may have, and dotted keys of settings in other sections."""


def _unknown_at(cls: type, key: Key, kinds: Kinds) -> _Place | None:
    places = _places(cls, key)
    fields = [*_fields_along(cls, [str(key[place]) for place in places])]
    if len(fields) == len(places):
        return None
    depth, last = places[len(fields)], fields[-1] if fields else None
    name = str(key[depth])
    elsewhere = () if len(key) != 2 else [name] if name in attrs.fields_dict(cls) else [*settings_below(cls)]
    if last is not None and _is_plugin(last):
        return _unknown_in_plugin(key, depth, last.metadata["plugin"], kinds, elsewhere)
    section = cls if last is None else _section_of(last)
    known = None if section is None else _known_in(section, key[:depth], kinds)
    return None if known is None or name in known else (name, known, elsewhere)


def _known_in(section: type, at: Key, kinds: Kinds) -> set[str] | None:
    """The settings of the `section` at the key `at`; None if they are not known."""
    known = {*attrs.fields_dict(section)}
    inline = inline_field(section)
    if inline is None:
        return known
    group = attrs.fields_dict(section)[inline].metadata["plugin"]
    candidates = [fields_of(group, kind) for kind in kinds(at, group)]
    if None in candidates or (not candidates and not isinstance(at[-1], int)):
        return None
    return (known - {inline}) | {"kind"} | set().union(*filter(None, candidates))


def _unknown_in_plugin(key: Key, depth: int, group: str, kinds: Kinds, elsewhere: Sequence[str]) -> _Place | None:
    """The part of `key` at `depth`, or below it, that cannot be a setting of the plugins that the section may have."""
    name, inner = str(key[depth]), key[depth + 1 :]
    candidates = [fields_of(group, kind) for kind in kinds(key[:depth], group)]
    if name == "kind" or not candidates or None in candidates:
        return None
    fields, modifiers = set().union(*filter(None, candidates)), set()
    if group == "algorithm":
        modifiers = {"modifiers", *names("modifier")}
        own = fields_of("modifier", name) if name in modifiers - fields - {"modifiers"} else None
        if own is not None and inner and inner[0] not in own:
            return str(inner[0]), own, ()
    is_known = name in fields | modifiers or (modifiers and ("." in name or ":" in name))
    return None if is_known else (name, fields | modifiers, elsewhere)
