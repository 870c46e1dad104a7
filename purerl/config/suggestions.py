"""The remedy for an unknown setting or metric: the setting and the value that are meant, if this is certain enough.

These are asked in order:

1. the names of earlier versions of purerl, and the names of other libraries, in `purerl.config.aliases`;
2. the settings beside it and those of the same name in another section, if they are similar.

A name is similar if its last part and its whole dotted name are. Otherwise nothing is suggested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Any, NamedTuple

from attrs import NOTHING

from purerl.config.aliases import LIBRARIES, Library, read_library, read_renamed
from purerl.config.tables import write

__all__ = ["similar", "suggestion"]

_LAST, _WHOLE, _ALIAS = 0.74, 0.8, 0.75  # smallest similarity of two names, from 0 to 1
_MAX_LISTED = 12


def suggestion(
    key: str, value: Any = NOTHING, *, name: str = "", known: Collection[str] = (), elsewhere: Iterable[str] = ()
) -> str | None:
    """The remedy for the unknown setting or metric `key`; None if nothing is certain enough.

    value      the value that was set; then the remedy has the value to write, if it is known
    name       the part of `key` that is unknown
    known      the names that it may have
    elsewhere  dotted keys of settings in other sections

    >>> suggestion("examples")
    "it is called 'batch_size' here (it was 'examples')"
    >>> suggestion("trainer.num_generations", 8)
    "TRL's 'num_generations' is 'rollout.samples_per_prompt' here: write rollout.samples_per_prompt = 8"
    >>> suggestion("trainer.sed", 8, name="sed", known=["seed", "size"])
    "did you mean 'seed'?"
    """
    if found := _of_aliases(key, value):
        return found
    same = [setting for setting in elsewhere if setting.rpartition(".")[2] == name]
    if len(same) == 1:
        return f"did you mean {same[0]!r}?"
    if name and (near := similar(name, known)):
        return f"did you mean {near!r}?"
    return "one of: " + ", ".join(sorted(known)) if 0 < len(known) <= _MAX_LISTED else None


def similar(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that is most similar to `name`, in its last part and as a whole; None if none is.

    >>> similar("evaluate.evry", ["evaluate.every", "checkpoint.every"])
    'evaluate.every'
    >>> similar("filter_groups.metric", ["stop_when.metric"]), similar("logger", ["lora"])
    (None, None)
    """
    scores = {each: _similarity(name, each) for each in sorted(known) if _last_parts_are_similar(name, each)}
    best = max(scores, key=lambda each: scores[each], default=None)
    return best if best is not None and ("." not in name or scores[best] >= _WHOLE) else None


def _similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def _last_parts_are_similar(a: str, b: str) -> bool:
    return _similarity(a.rpartition(".")[2], b.rpartition(".")[2]) >= _LAST


# --- names of other libraries, and old names ---------------------------------------------------------------------


class _Alias(NamedTuple):
    """A name that is not purerl's. `library` is empty for old names of purerl; `section` distinguishes equal names.

    `value` is the only value that it is about, as text; empty: every value. `written` are the settings with values.
    """

    library: str
    name: str
    long_name: str
    settings: tuple[str, ...]
    section: str
    value: str = ""
    written: tuple[str, ...] = ()
    note: str = ""

    def ends_like(self, key: str) -> bool:
        """Whether `key` has the last part of this name, and its other parts do not contradict it.

        An old name of purerl without a dot counts only as a whole.
        """
        if not (self.library or "." in self.name) or self.name.rpartition(".")[2] != key.rpartition(".")[2]:
            return False
        is_part = any(_is_suffix(*pair) for name in self.names for pair in ((key, name), (name, key)))
        return is_part or max(_similarity(key, name) for name in self.names) >= _ALIAS

    @property
    def names(self) -> tuple[str, str]:
        """The short and the long form."""
        return self.name, self.long_name


def _is_suffix(part: str, whole: str) -> bool:
    return f".{whole}".endswith(f".{part}")


def _of_aliases(key: str, value: Any) -> str | None:
    """The remedy that the tables have for `key`. A whole name is preferred, also below ``initial_run.``.

    Otherwise the names that end like `key` must all be replaced by the same settings.
    """
    name = key.removeprefix("initial_run.")
    matches = [alias for alias in _aliases() if name in alias.names]
    if not matches:
        matches = [alias for alias in _aliases() if alias.ends_like(name)]
        if len({alias.settings for alias in matches}) > 1:
            return None
    if not matches or name in matches[0].settings:
        return None
    return _describe([alias for alias in matches if alias.library == matches[0].library], value)


@cache
def _aliases() -> tuple[_Alias, ...]:
    renamed = (_Alias("", name, name, settings, "") for name, settings in read_renamed().items())
    return (*renamed, *(alias for name in LIBRARIES for alias in _aliases_in(read_library(name))))


def _aliases_in(library: Library) -> Iterator[_Alias]:
    for row in library.rows:
        if row.kind != "setting":
            continue
        for text in row.names:
            name, _, value = text.partition("=")
            first, dot, rest = name.partition(".")
            long_name = library.prefixes.get(first, first) + dot + rest
            # The setting that corresponds to the key of "key=value" comes first, without its value.
            settings = (row.settings[0].partition("=")[0],) if value else row.settings
            yield _Alias(library.name, name, long_name, settings, row.section, value, row.settings, row.note)


def _describe(aliases: Sequence[_Alias], value: Any) -> str:
    """A remedy made from `aliases`, which have one library and one name."""
    first = aliases[0]
    if first.settings == (first.name,):
        return f"it is called {first.name!r} here{_assignment(aliases, value)}"
    if not first.library:
        names = _join(first.settings, "or")
        return f"it is called {names} here{_assignment(aliases, value)} (it was {first.name!r})"
    sections: dict[str, list[str]] = {}
    for alias in aliases:
        sections.setdefault(_join(alias.settings, "and"), []).append(alias.section)
    if len(sections) == 1:
        return f"{first.library}'s {first.name!r} is {next(iter(sections))} here{_assignment(aliases, value)}"
    choices = " or ".join(f"{settings} ({', '.join(dict.fromkeys(names))})" for settings, names in sections.items())
    return f"{first.library}'s {first.name!r} is {choices} here"


def _assignment(aliases: Sequence[_Alias], value: Any) -> str:
    """The line to write in place of the alias with `value`, or what differs; empty if neither is known."""
    if value is NOTHING:
        return ""
    texts = {str(value).lower(), write(value).lower()}
    named = [alias for alias in aliases if alias.value and alias.value.lower() in texts]
    if named:
        return f": write {', '.join(map(_spaced, named[0].written))}"
    plain = [alias for alias in aliases if not alias.value]
    if not plain:
        return ""
    if plain[0].note:
        return f". {plain[0].note.replace('`', '')}".removesuffix(".")
    is_one = len(plain[0].settings) == 1 and "=" not in plain[0].settings[0]
    return f": write {plain[0].settings[0]} = {write(value)}" if is_one else ""


def _spaced(setting: str) -> str:
    """``key=value`` as a line of TOML."""
    key, equals, value = setting.partition("=")
    return f"{key} = {write(value) if value.replace('_', '').isalpha() else value}" if equals else key


def _join(names: Iterable[str], conjunction: str) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} {conjunction} {last}" if first else last
