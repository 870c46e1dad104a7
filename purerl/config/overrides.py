"""Settings written as strings, ``dotted.key=value``, as in `--set`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from purerl.config.keys import is_field, is_plugin
from purerl.config.modifiers import is_modifier
from purerl.config.structure import from_dict, to_dict
from purerl.config.tables import ALTERNATIVES, SHORT, UNSET, Table, show
from purerl.errors import ConfigError, similar
from purerl.system.nesting import MAX_NESTING, NestingError, read_toml

__all__ = ["apply", "build", "parse", "read_value"]

T = TypeVar("T")

_EVALUATIONS = ("evaluate", "validation")
"""Sections that use the validation set of `data.validation_fraction`, unless their `data` name files."""

_DOT = re.compile(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)')
"""A dot that is not in quotes: algorithm."package.module:Class".size has three parts."""


def apply(config: T, settings: Iterable[str], *, before: Iterable[str] = ()) -> T:
    """`config` with `settings` changed, each a string ``dotted.key=value``.

    A value is TOML, or otherwise a string. In place of the section of a plugin, a string is its `kind`. An empty value
    returns a setting to its default. The order of `settings` does not matter, except that the last one of the same key
    counts: a section is applied before the settings in it, and a `kind`, which starts from its own defaults, before the
    settings beside it. A setting in a section that is None creates the section. An item of a list of tables is named by
    its name, by the last part of the name of its function, or by its index: ``rewards.exact_match.weight=0.5``.

    A setting replaces its alternative in `config`: `num_epochs` replaces `max_steps`, and `evaluate=` and
    `evaluate.data` replace a `data.validation_fraction` that nothing else uses. What `settings` name is never replaced,
    nor what `before` names, settings that have been applied to `config` already. Modifiers of an algorithm that
    `settings` add are applied in the order in which they are first named.

    Raises: ConfigError for a setting without ``=``, and as `from_dict`.

    >>> from purerl.protocols import Sampling
    >>> changed = apply(Sampling(), ["max_tokens=8", 'stop_strings=["."]'])
    >>> changed.max_tokens, changed.stop_strings
    (8, ('.',))
    """
    return from_dict(type(config), _changed(type(config), to_dict(config), settings, before))


def build(cls: type[T], settings: Iterable[str], table: Table | None = None) -> T:
    """The instance of `cls` that `table`, changed by `settings`, describes; `settings` are strings as in `apply`.

    >>> from purerl.settings import Model
    >>> build(Model, ["path=gpt2", "attention=eager"]).attention
    'eager'
    """
    return from_dict(cls, _changed(cls, table or {}, settings))


def parse(setting: str) -> tuple[list[str], str]:
    """The parts of the dotted key of a setting, and its value.

    Raises: ConfigError for a setting without ``=`` or with an empty part.

    >>> parse('algorithm."package.module:Class".size = 2')
    (['algorithm', 'package.module:Class', 'size'], '2')
    """
    key, equals, value = setting.partition("=")
    keys = [part.strip('"') for part in _DOT.split(key.strip())]
    if not equals or not all(keys):
        raise ConfigError(f"setting {setting!r}", need="key=value, such as trainer.lr=1e-3")
    if len(keys) > MAX_NESTING:
        raise ConfigError(f"setting {key[:20]} ...", got=f"{len(keys):,} names", need=f"at most {MAX_NESTING}")
    return keys, value.strip()


def _changed(cls: type, table: Table, settings: Iterable[str], before: Iterable[str] = ()) -> Table:
    parsed = [_with_kind(cls, *parse(setting)) for setting in settings]
    named = [keys for keys, _ in (*parsed, *map(parse, before))]
    for keys, text in sorted(parsed, key=_order([keys for keys, _ in parsed])):
        section = _set(table, keys, read_value(text), names_plugin=keys[-1] == "kind" and not is_field(cls, keys))
        alternative = ALTERNATIVES.get(keys[-1])
        if text and alternative in section and [*keys[:-1], alternative] not in named:
            section[alternative] = UNSET
    changed = [keys for keys, _ in parsed]
    _drop_unused_fraction(table, changed, named)
    if isinstance(initial := table.get("initial_run"), dict):
        _drop_unused_fraction(
            initial, *([keys[1:] for keys in each if keys[0] == "initial_run"] for each in (changed, named))
        )
    return table


def _drop_unused_fraction(table: Table, changed: Collection[list[str]], named: Collection[list[str]]) -> None:
    """Unset a validation fraction that is not in `named`, if `changed` removed what used it."""
    data, sections = table.get("data"), [table.get(name, UNSET) for name in _EVALUATIONS]
    is_used = any(isinstance(section, dict) and section.get("data", UNSET) in (UNSET, {}, []) for section in sections)
    is_changed = any(keys == [name] or keys[:2] == [name, "data"] for keys in changed for name in _EVALUATIONS)
    if is_changed and not is_used and isinstance(data, dict) and ["data", "validation_fraction"] not in named:
        data["validation_fraction"] = UNSET


def _order(named: Sequence[list[str]]) -> Callable[[tuple[list[str], str]], Any]:
    """The key by which settings are sorted; `named` are their keys. A modifier and its settings stay together."""
    prefixes = [_modifier_in(keys) for keys in named]

    def order(setting: tuple[list[str], str]) -> Any:
        keys, _ = setting
        prefix = _modifier_in(keys)
        return len(prefix or keys), keys[-1] != "kind", prefixes.index(prefix) if prefix else -1, len(keys)

    return order


def _modifier_in(keys: Sequence[str]) -> list[str] | None:
    """The first parts of `keys`, up to the name of a modifier; None if there is none."""
    depths = (depth for depth, above in enumerate(keys, start=2) if above == "algorithm")
    depth = next(depths, len(keys) + 1)
    return [*keys[:depth]] if depth <= len(keys) and is_modifier(keys[depth - 1]) else None


def _with_kind(cls: type, keys: list[str], text: str) -> tuple[list[str], str]:
    """``algorithm=grpo`` as ``algorithm.kind=grpo``, and likewise for every section of a plugin."""
    return ([*keys, "kind"] if isinstance(read_value(text), str) and is_plugin(cls, keys) else keys), text


def _set(table: Table, keys: Sequence[str], value: Any, *, names_plugin: bool) -> Table:
    """Set the value of `keys` in `table`, and return the section that contains it.

    A section that gets another plugin loses the settings of the one before.
    """
    *sections, key = keys
    for depth, section in enumerate(sections, start=1):
        if isinstance(table, list):
            table = _item(table, section, keys[: depth - 1])
            continue
        inner = table.get(section, UNSET)
        has_short_form = isinstance(inner, str) or (section in table and _modifier_in(keys[:depth]) == [*keys[:depth]])
        if isinstance(inner, list | tuple):
            table[section] = [*inner]
        elif not isinstance(inner, dict):
            table[section] = {SHORT: inner} if has_short_form else {} if inner is UNSET else inner
        table = table[section]
        if not isinstance(table, dict | list):
            raise ConfigError(".".join(keys), got=f"{'.'.join(keys[:depth])} is {show(table)}", need="a section")
    if isinstance(table, list):
        return _set_item(table, key, value, sections)
    if names_plugin and table.get("kind") != value:
        table.clear()
    table[key] = value
    return table


# --- items of lists, such as rewards -----------------------------------------------------------------------------


def _set_item(items: list[Any], name: str, value: Any, above: Sequence[str]) -> Table:
    """Replace the item with this name or index; with `UNSET` it is removed."""
    item = _item(items, name, above)
    index = next(k for k, each in enumerate(items) if each is item)
    items[index : index + 1] = [] if value is UNSET else [value]
    return {}


def _item(items: list[Any], name: str, above: Sequence[str]) -> Table:
    """The table in `items`, the value at the key `above`, with this name or index. A string in it becomes a table.

    Raises: ConfigError if there is none, or more than one.
    """
    names = [_names_of(item) for item in items]
    found = [k for k, each in enumerate(names) if name in each] or [k for k in range(len(items)) if name == str(k)]
    if len(found) != 1:
        known = [each[0] for each in names if each]
        near = None if found else similar(name, known)
        got = "several of this name" if found else "no item of this name"
        need = f"one of: {', '.join(known)}; or an index from 0" if items else "an item: the list is empty"
        raise ConfigError(f"{'.'.join(above)}.{name}", got=got, need=need, do=near and f"did you mean {near!r}?")
    index = found[0]
    if not isinstance(items[index], dict):
        items[index] = {SHORT: items[index]}
    return items[index]


def _names_of(item: Any) -> list[str]:
    """The names of an item, by precedence: the last part of its name, as in messages and metrics, and the whole one."""
    table = {"function": item} if isinstance(item, str) else item if isinstance(item, dict) else {}
    values = [table.get(key) for key in ("name", "role", "function", SHORT, "kind")]
    full = [value for value in values if isinstance(value, str)][:1]
    return [*dict.fromkeys([re.split("[:.]", full[0])[-1], full[0]])] if full else []


def read_value(text: str) -> Any:
    """`text` as TOML if it is one value, otherwise as a string; `UNSET` if it is empty."""
    if not text:
        return UNSET
    try:
        table = read_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except NestingError as error:
        raise ConfigError(f"the value {text[:20]} ...", got=str(error), need=f"at most {MAX_NESTING}") from error
    return table["value"] if len(table) == 1 else text
