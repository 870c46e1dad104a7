"""Two ways to write modifiers in the section of an algorithm: as a list, or as settings of their own.

    [algorithm]
    kind = "grpo"
    modifiers = [{kind = "reduction", by = "token_mean"}, "dual_clip"]
    kl_loss = 0.01                                                        # its main field
    entropy_bonus = {coef = 0.001, reduction = "token_mean"}              # several fields
    "package.module:Class" = {size = 2}                                   # a modifier of another package

Modifiers are applied in this order. A setting of its own changes the modifier of this kind in the list, or adds it at
the end. True adds it with its defaults; false, or an empty value, removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs

from purerl.config.tables import SHORT, UNSET, Table, show
from purerl.errors import ConfigError
from purerl.plugins import find, names

__all__ = ["is_modifier", "key_of", "split_modifiers"]


def is_modifier(key: str) -> bool:
    """Whether `key` in the section of an algorithm can be a modifier: a known name, or the address of one."""
    return "." in key or ":" in key or key in names("modifier")


def key_of(kind: str) -> str:
    """The modifier `kind` as part of a dotted key: in quotes if it has a dot itself."""
    return f'"{kind}"' if "." in kind else kind


def split_modifiers(
    table: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[Table, list[Table]]:
    """The table of an algorithm without its modifiers, and the tables of its modifiers, in their order.

    A field of the algorithm that has the name of a modifier is the field. `defaults` are settings, by kind of modifier,
    that a modifier has if the table does not set them.

    Raises: ConfigError for a list of modifiers that is not one, and for a modifier that does not exist.
    """
    try:
        own = attrs.fields_dict(find("algorithm", table["kind"]).Config)
    except ConfigError:  # reported when the algorithm is read
        return dict(table), []
    listed = table.get("modifiers", UNSET)
    modifiers = _tables([] if listed is UNSET else listed)
    rest: Table = {}
    for key, value in table.items():
        if key in own or not is_modifier(key):
            rest |= {} if key == "modifiers" else {key: value}
        else:
            modifiers = _changed(modifiers, key, value)
    return rest, [{**defaults.get(modifier["kind"], {}), **modifier} for modifier in modifiers]


def _tables(listed: Any) -> list[Table]:
    """The list of modifiers, each as a table with its kind."""
    items = listed if isinstance(listed, list | tuple) else [None]
    tables: list[Any] = [{"kind": item} if isinstance(item, str) else item for item in items]
    if not all(isinstance(table, Mapping) and isinstance(table.get("kind"), str) for table in tables):
        need, do = "a list of names, or of sections with their kind", 'write it as ["kl_loss", {kind = "dual_clip"}]'
        raise ConfigError("modifiers", got=show(listed), need=need, do=do)
    for table in tables:
        _find(table["kind"])
    return [dict(table) for table in tables]


def _changed(modifiers: list[Table], kind: str, value: Any) -> list[Table]:
    """The list with the setting `kind` applied: a section, the value of the main field, or both."""
    fields = attrs.fields(_find(kind).Config)
    settings = dict(value) if isinstance(value, Mapping) else {SHORT: value}
    main = settings.pop(SHORT, True)
    if main is UNSET or main is False:
        modifiers = [modifier for modifier in modifiers if modifier["kind"] != kind]
        if not settings:
            return modifiers
    elif main is not True and not fields:
        need = f"true or false: {kind} has no settings"
        raise ConfigError("modifiers", got=f"{kind} = {show(main)}", need=need)
    elif main is not True:
        settings = {fields[0].name: main} | settings
    kinds = [modifier["kind"] for modifier in modifiers]
    if kind not in kinds:
        return [*modifiers, {"kind": kind, **settings}]
    return [modifier | (settings if modifier["kind"] == kind else {}) for modifier in modifiers]


def _find(kind: str) -> Any:
    try:
        return find("modifier", kind)
    except ConfigError as error:
        raise ConfigError(f"modifiers: {error}") from error
