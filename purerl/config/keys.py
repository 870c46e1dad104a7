"""Keys of settings, checked without importing torch or anything that a configuration names.

The fields of a section are those of its class, and the fields of a plugin are read from its source code. So a
misspelled key is reported at once. If the fields of a section are not known, its keys are accepted here, and checked
when the configuration is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import attrs

from purerl.config.aliases import suggestion
from purerl.errors import ConfigError, nearest
from purerl.plugins import fields_of, names

__all__ = [
    "EVALUATION_PARAMETERS",
    "Kinds",
    "check_keys",
    "is_field",
    "is_plugin",
    "keys_of",
    "section_in",
    "settings_below",
    "unknown",
]

Kinds = Callable[[str, str], Collection[str]]
"""(dotted key of a section, group of plugins) -> the kinds that the section may have; empty if they are not known."""


def unknown(key: str, name: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown setting `key`, whose last part is `name`.

    known      the settings beside it
    elsewhere  dotted keys of settings in other sections; one of them may have the same name
    """
    *sections, last = key.split(".")
    if last in EVALUATION_PARAMETERS and sections[-1:] in ([], ["rollout"], ["generator"]):
        need = (
            "training samples from all tokens, at rollout.temperature: the trainer has their probabilities under the "
            "whole distribution, and the importance ratio to any other one would be biased"
        )
        return ConfigError(key, got="a setting that only evaluations have", need=need, do=f"set evaluate.{last}")
    same = [setting for setting in elsewhere if setting.rpartition(".")[2] == name]
    do = f"did you mean {same[0]!r}?" if len(same) == 1 else suggestion(key) or nearest(name, known)
    return ConfigError(key, got="no such setting", need="one that `purerl config` lists", do=do)


EVALUATION_PARAMETERS = ("top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "regex", "json_schema")
"""Parameters of `purerl.protocols.Sampling` that only evaluations have."""


def check_keys(cls: type, keys: Iterable[Sequence[str]], kinds: Kinds) -> None:
    """Raise ConfigError with all of `keys`, each a sequence of the parts of a dotted key, that `cls` cannot have."""
    errors = [str(error) for error in (_error_at(cls, key, kinds) for key in keys) if error]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(errors)))


def keys_of(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys of all values in `table` and its sub-tables."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from keys_of(value, (*above, key))
        else:
            yield (*above, key)


def is_plugin(cls: type, key: Sequence[str]) -> bool:
    """Whether the setting `key` of `cls` is the section of one plugin."""
    fields = [*_fields_along(cls, key)]
    return len(fields) == len(key) and _is_plugin(fields[-1])


def is_field(cls: type, key: Sequence[str]) -> bool:
    """Whether `key` names a field of `cls` or of one of its sections that is not the section of a plugin."""
    return len([*_fields_along(cls, key)]) == len(key)


def section_in(kind: Any) -> type | None:
    """The attrs class that the type `kind` is or has among its alternatives."""
    return next((choice for choice in (kind, *get_args(kind)) if isinstance(choice, type) and attrs.has(choice)), None)


def settings_below(cls: type, *above: type) -> Iterator[str]:
    """The dotted keys of the settings in the sections of `cls`, at any depth, without sections of a class `above`."""
    for name, field in attrs.fields_dict(attrs.resolve_types(cls)).items():
        section = None if "plugin" in field.metadata or _has_items(field) else section_in(field.type)
        if section not in (None, cls, *above):
            inner = (*attrs.fields_dict(section), *settings_below(section, cls, *above))
            yield from (f"{name}.{key}" for key in inner)


def _fields_along(cls: type, key: Sequence[str]) -> Iterator[attrs.Attribute]:
    """The fields that the parts of `key` name, up to the first one that is no section, or unknown."""
    section: type | None = cls
    for name in key:
        field = attrs.fields_dict(attrs.resolve_types(section)).get(name) if section else None
        if field is None:
            return
        yield field
        section = None if "plugin" in field.metadata or _has_items(field) else section_in(field.type)


def _has_items(field: attrs.Attribute) -> bool:
    """Whether the setting is a list, or a table of sections by name."""
    return get_origin(field.type) in (tuple, Mapping)


def _is_plugin(field: attrs.Attribute) -> bool:
    return "plugin" in field.metadata and get_origin(field.type) is not tuple


def _error_at(cls: type, key: Sequence[str], kinds: Kinds) -> ConfigError | None:
    fields = [*_fields_along(cls, key)]
    if len(fields) == len(key):
        return None
    name, last = key[len(fields)], fields[-1] if fields else None
    elsewhere = () if len(key) != 2 else [name] if name in attrs.fields_dict(cls) else [*settings_below(cls)]
    if last is not None and _is_plugin(last):
        return _error_in_plugin(key, len(fields), last.metadata["plugin"], kinds, elsewhere)
    section = cls if last is None else None if _has_items(last) else section_in(last.type)
    return unknown(".".join(key), name, attrs.fields_dict(section), elsewhere) if section else None


def _error_in_plugin(
    key: Sequence[str], depth: int, group: str, kinds: Kinds, elsewhere: Sequence[str]
) -> ConfigError | None:
    """The error if the part of `key` at `depth` cannot be a setting of the plugins that the section may have."""
    name, inner = key[depth], key[depth + 1 :]
    candidates = [fields_of(group, kind) for kind in kinds(".".join(key[:depth]), group)]
    if name == "kind" or not candidates or None in candidates:
        return None
    fields, modifiers = set().union(*filter(None, candidates)), set()
    if group == "algorithm":
        modifiers = {"modifiers", *names("modifier")}
        own = fields_of("modifier", name) if name in modifiers - fields - {"modifiers"} else None
        if own is not None and inner and inner[0] not in own:
            return unknown(".".join(key), inner[0], own)
    is_known = name in fields | modifiers or (modifiers and ("." in name or ":" in name))
    return None if is_known else unknown(".".join(key), name, fields | modifiers, elsewhere)
