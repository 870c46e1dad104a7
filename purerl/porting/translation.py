"""Translation of settings of another library by the answers in `purerl.config.aliases`.

A setting that was given is in one of the lists of the result. A default of the library is written if it differs from
purerl's, and its comment says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

from purerl.config.aliases import read_library
from purerl.config.aliases.answers import Answer, answer, answers, known
from purerl.errors import ConfigError
from purerl.porting.outcomes import FILL_IN, Missing, Rule, Setting, Translation, Unknown
from purerl.porting.own_defaults import own_default

__all__ = ["translate", "unknown_names"]


def translate(
    given: Mapping[str, Any],
    library: str,
    rules: Mapping[str, Rule],
    *,
    assumed: Mapping[str, Any],
    context: Mapping[str, Any] = MappingProxyType({}),
    first: Iterable[Setting] = (),
) -> Translation:
    """The settings of purerl that do what the settings `given` of `library`, "trl" or "verl", do.

    given    values by name, "Class.field" or a dotted key; an `Unknown` in place of a value that is not known
    rules    the rules that answers name
    assumed  the defaults that apply: of settings that are not given, or whose value is not known
    context  further values that rules read, such as the number of processes
    first    settings that do not follow from those of `library`; they are written first

    Raises: ConfigError that lists every name that `library` does not have.
    """
    _check_names(given, library)
    first = tuple(first)
    names = frozenset(setting.key for setting in first)
    values = {**assumed, **given}
    found = _Found(library, rules, values, given, assumed, context, names, {}, set(), {}, {}, {})
    for setting in first:
        _add(found, setting, is_given=True)
    applied: set[str] = set()
    for name in found.values:
        one = _answer(library, name)
        if one.rule and one.rule not in applied:
            applied.add(one.rule)
            _apply_rule(found, one.rule)
        elif not one.rule:
            _apply(found, name, one)
    _fill_in_unknown(found)
    kinds = {setting.key.removesuffix(".kind"): setting.value for setting in found.settings.values()}
    settings = [one for one in found.settings.values() if one.key in found.explicit or _differs(one, kinds)]
    unknown = {name: value for name, value in given.items() if isinstance(value, Unknown)}
    name = read_library(library).name
    return Translation(name, tuple(settings), found.translated, found.unneeded, found.missing, unknown)


def _check_names(names: Iterable[str], library: str) -> None:
    """Raise ConfigError that lists those of `names` that `library` does not have, with the nearest ones."""
    unknown, title = unknown_names(names, library), f"no such setting in {_title(library)}"
    if unknown:
        raise ConfigError("\n".join(str(ConfigError(name, got=title, do=do)) for name, do in unknown.items()))


def unknown_names(names: Iterable[str], library: str) -> dict[str, str]:
    """Those of `names` that `library` does not have, each with the remedy: the nearest ones."""
    table = known(library)
    return {name: _nearest(name, library, table) for name in names if not _is_known(name, library, table)}


def _title(library: str) -> str:
    return f"{read_library(library).name} {read_library(library).version}"


class _Found(NamedTuple):
    """A translation in progress.

    first     settings of purerl that do not follow from those of the library
    explicit  settings of purerl that follow from settings that were given
    """

    library: str
    rules: Mapping[str, Rule]
    values: Mapping[str, Any]
    given: Mapping[str, Any]
    assumed: Mapping[str, Any]
    context: Mapping[str, Any]
    first: Collection[str]
    settings: dict[str, Setting]
    explicit: set[str]
    translated: dict[str, tuple[str, ...]]
    unneeded: dict[str, str]
    missing: dict[str, str]


def _is_known(name: str, library: str, table: Mapping[str, Any]) -> bool:
    """Whether `name` is in `table`, is in an answer by its whole name, or is below a setting that may be a table.

    So is a name below a section that is not needed as a whole, or that only earlier versions had.
    """
    parts = name.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts))]
    is_named = any(name in one.names for one in answers(library))
    is_below = any(key in table and table[key] in ({}, None) for key in above)
    return name in table or is_named or is_below or any(_is_free(key, library) for key in above)


def _is_free(section: str, library: str) -> bool:
    """Whether a name below `section` cannot be a typing error that changes something."""
    pattern = f"{section}.*"
    found = [one for one in answers(library) if pattern in one.names]
    is_old = not any(name.startswith(f"{section}.") for name in known(library))
    return any(one.unneeded or (one.to and is_old) for one in found)


def _nearest(name: str, library: str, table: Iterable[str]) -> str:
    last = name.rpartition(".")[2]
    section = f"{name.partition('.')[0]}."
    table = [key for key in table if key.startswith(section)] if library == "trl" else [*table]
    same = [key for key in table if key.rpartition(".")[2] == last]
    close = get_close_matches(name, same or table, n=3, cutoff=0.0 if same else 0.6)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out, or correct its name"


def _answer(library: str, name: str) -> Answer:
    """The answer for `name`; for a setting below one that is a table, that of the table if it has none."""
    one, above = answer(library, name), name.rpartition(".")[0]
    if one is None and not above:
        raise KeyError(name)
    return one or _answer(library, above)


# --- one setting --------------------------------------------------------------------------------------------------


def _apply(found: _Found, name: str, one: Answer) -> None:
    """Translate the setting `name` by itself."""
    value, is_given = found.values[name], name in found.given
    if not one.to:
        is_same = one.missing and (value in (None, [], {}) or value in one.same)
        reason = "with this value nothing has to be set" if is_same else one.unneeded
        if is_given and reason:
            found.unneeded[name] = reason
        elif is_given:
            found.missing[name] = one.missing
    elif isinstance(value, Unknown):
        return
    elif value is None or value in one.same:
        found.unneeded.update({name: "with this value nothing has to be set"} if is_given else {})
    elif one.values and _text(value) not in one.values:
        found.missing.update({name: f"there is no counterpart of {value!r}"} if is_given else {})
    else:
        settings = [*_direct(one, value)]
        for setting in settings:
            _add(found, setting if is_given else _default(found, setting), is_given=is_given)
        if is_given:
            found.translated[name] = tuple(setting.key for setting in settings)


def _direct(one: Answer, value: Any) -> Iterator[Setting]:
    mapped = one.values[_text(value)] if one.values else value
    table = mapped if one.values and isinstance(mapped, Mapping) else dict.fromkeys(one.to, mapped)
    for key, each in table.items():
        yield Setting(key, each, one.note)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fill_in_unknown(found: _Found) -> None:
    """Leave the settings of purerl that follow from an unknown value to the user: those that rules have, or all."""
    for name, value in found.given.items():
        one = _answer(found.library, name)
        if not isinstance(value, Unknown) or not one.to:
            continue
        keys = [key for key in found.settings if _covers(one, key)] if one.rule else []
        keys = keys or [*dict.fromkeys(text.partition("=")[0] for text in one.to)]
        for key in keys:
            value_of_first = found.settings[key].value if key in found.first else FILL_IN
            _add(found, Setting(key, value_of_first, f"{name.rpartition('.')[2]} = {value}"), is_given=True)
        found.translated[name] = tuple(keys)


# --- rules --------------------------------------------------------------------------------------------------------


def _apply_rule(found: _Found, rule: str) -> None:
    """Translate all settings whose answer has `rule`. For it, a value that is not known is the default."""
    used = {name: one for name in found.values if (one := _answer(found.library, name)).rule == rule}
    given = [name for name in used if name in found.given]
    outcomes = [*found.rules[rule](_known(found))]
    for outcome in outcomes:
        if isinstance(outcome, Setting):
            is_given = any(_covers(_answer(found.library, name), outcome.key) for name in found.given)
            is_plain = is_given or outcome.comment
            _add(found, outcome if is_plain else _default(found, outcome), is_given=is_given)
        else:
            found.missing[outcome.name] = outcome.why
    for name in given:
        if isinstance(found.given[name], Unknown):
            continue
        if keys := _keys_of(used[name], outcomes):
            found.translated[name] = keys
        elif name not in found.missing:
            found.unneeded[name] = "with this value nothing has to be set"


def _known(found: _Found) -> dict[str, Any]:
    values, usual = {**found.values, **found.context}, {**known(found.library), **found.assumed}
    return {name: usual.get(name) if isinstance(value, Unknown) else value for name, value in values.items()}


def _keys_of(one: Answer, outcomes: Iterable[Setting | Missing]) -> tuple[str, ...]:
    """The keys of `outcomes` that are settings in `one`, or below one of them."""
    keys = [outcome.key for outcome in outcomes if isinstance(outcome, Setting)]
    return tuple(dict.fromkeys(key for key in keys if _covers(one, key)))


def _covers(one: Answer, key: str) -> bool:
    """Whether `key` is one of the settings in `one`, or below one of them."""
    return any(key == each or key.startswith(f"{each}.") for each in (text.partition("=")[0] for text in one.to))


# --- settings of purerl -------------------------------------------------------------------------------------------


def _default(found: _Found, setting: Setting) -> Setting:
    """`setting`, with the comment that it is a default of the library."""
    return setting._replace(comment=f"{read_library(found.library).name}'s default")


def _add(found: _Found, setting: Setting, *, is_given: bool) -> None:
    """Add `setting`. A setting that was given replaces a default, and no default replaces it."""
    if is_given or setting.key not in found.explicit:
        found.settings[setting.key] = setting
    if is_given:
        found.explicit.add(setting.key)


def _differs(setting: Setting, kinds: Mapping[str, Any]) -> bool:
    return setting.value != own_default(setting.key, kinds)
