"""Remedies for names of other libraries, and for old names of purerl: the setting and the value to write.

They are made from the rows of `purerl.config.aliases`, which have the names that are used most, and from the answers of
`purerl.config.aliases.answers`, which have every setting of TRL, verl and peft.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from typing import Any, NamedTuple

from attrs import NOTHING

from purerl.config.aliases import LIBRARIES, Library, read_library, read_renamed
from purerl.config.aliases.answers import Answer, answer, known
from purerl.config.tables import write

__all__ = ["full_names", "remedy"]

_SIMILAR = 0.75  # smallest similarity of a dotted name to one with the same last part
_CLASSES = (
    "GRPOConfig",
    "DPOConfig",
    "SFTConfig",
    "KTOConfig",
    "RewardConfig",
    "TrainingArguments",
    "LoraConfig",
    "ModelConfig",
)
"""Classes of TRL, transformers and peft whose fields are written without the class, by precedence."""


def remedy(key: str, value: Any = NOTHING, line: str = "") -> str | None:
    """The remedy for the unknown setting or metric `key` with `value`; None if it is no name of another library.

    `line` says what to write, if it has been computed from this and other settings. Otherwise it is made from the value
    alone, if that is possible.

    A whole name is preferred, also below ``initial_run.``. Otherwise all names that end like `key` must be replaced by
    the same settings.

    >>> remedy("learning_rate", 1e-5)
    "TRL's 'learning_rate' is 'trainer.lr' here: write trainer.lr = 1e-05"
    >>> remedy("actor_rollout_ref.actor.qat.enable", True)
    "verl's 'actor_rollout_ref.actor.qat.enable' is not there: there is no training with quantized weights"
    """
    name = key.removeprefix("initial_run.")
    rows = [alias for alias in _aliases() if name in alias.names]
    if rows:
        return _of_rows(name, rows, value, line)
    is_key = _long(read_library("verl"), name) in known("verl")
    rows = [] if is_key else [alias for alias in _aliases() if alias.has_end_of(name)]
    return (_of_rows(name, rows, value, line) if rows else None) or _of_answers(name, value, line)


def _of_rows(name: str, rows: Sequence[_Alias], value: Any, line: str) -> str | None:
    if len({alias.settings for alias in rows if name not in alias.names}) > 1 or name in rows[0].settings:
        return None
    return _describe([alias for alias in rows if alias.library == rows[0].library], value, line)


# --- answers -----------------------------------------------------------------------------------------------------


def _of_answers(name: str, value: Any, line: str) -> str | None:
    """The remedy by the answer for `name`; None if no library has it, or if several answers are possible."""
    for library in reversed(LIBRARIES):
        if found := full_names(library, name):
            return _answered(library, name, found, value, line)
    return None


def full_names(library: str, name: str) -> list[str]:
    """The settings of `library` that `name` can be: the whole name, its field in a class, or the end of dotted keys."""
    every, last = known(library), name.rpartition(".")[2]
    whole = _long(read_library(library), name)
    if whole in every:
        return [whole]
    if library == "trl":
        return [full for cls in _CLASSES if (full := f"{cls}.{last}") in every]
    return [full for full in every if full.endswith(f".{whole}")] if "." in whole else []


def _answered(library: str, name: str, names: Sequence[str], value: Any, line: str) -> str | None:
    by_text: dict[str, list[str]] = {}
    for full in names:
        if (one := answer(library, full)) is not None:
            by_text.setdefault(_verdict(library, one, value, line), []).append(full)
    if not by_text:
        return None
    text, names = next(iter(by_text.items()))
    if len(by_text) > 1:
        if library != "trl":
            return None
        text = " or ".join(f"{each} ({', '.join(_classes(names))})" for each, names in by_text.items())
    is_of_peft = all(full.startswith("LoraConfig.") for full in names)
    title = "peft" if is_of_peft else read_library(library).name
    shown = name.rpartition(".")[2] if library == "trl" else name
    return f"{title}'s {shown!r} {text}"


def _classes(full_names: Iterable[str]) -> list[str]:
    return [full.partition(".")[0] for full in full_names]


def _verdict(library: str, one: Answer, value: Any, line: str) -> str:
    """The answer as the end of a sentence."""
    if value is not NOTHING and value in one.same:
        return "is not needed: with this value nothing has to be set"
    if one.unneeded:
        return f"is not needed: {_sentence(one.unneeded)}"
    if one.missing:
        return f"is not there: {_sentence(one.missing)}"
    names = _join(dict.fromkeys(text.partition("=")[0] for text in one.to), "and")
    if line.startswith("write "):
        return f"is written as {line.removeprefix('write ')}{_appended(one.note)}"
    if line:
        return f"is {names} here: {line}{_appended(one.note)}"
    lines = _translated(one, value)
    return f"is {names} here" + (f": write {lines}" if lines else "") + _appended(one.note) + _hint(library, one, value)


def _hint(library: str, one: Answer, value: Any) -> str:
    """That the value follows from several settings, if it does."""
    if value is NOTHING or not one.rule:
        return ""
    return f". The value follows from several settings: purerl import {library} computes it"


def _translated(one: Answer, value: Any) -> str:
    """The lines to write for `value`; empty if they follow from several settings, or are not known."""
    if value is NOTHING or one.rule:
        return ""
    if not one.values:
        return f"{one.to[0]} = {write(value)}" if len(one.to) == 1 and not one.note else ""
    mapped = one.values.get(str(value).lower() if isinstance(value, bool) else str(value), NOTHING)
    table = mapped if isinstance(mapped, Mapping) else dict.fromkeys(one.to, mapped)
    return "" if mapped is NOTHING else ", ".join(f"{key} = {write(part)}" for key, part in table.items())


def _appended(note: str) -> str:
    plain = note.replace("`", "").removesuffix(".")
    start = plain[:1].upper() if plain.split(" ")[0].isalpha() else plain[:1]
    return f". {start}{plain[1:]}" if note else ""


def _sentence(text: str) -> str:
    """`text` without the marks of Markdown, and with a small first letter if it starts with a usual word."""
    plain = text.replace("`", "").removesuffix(".")
    is_word = plain[:1].isupper() and plain[1:2].islower() and plain.split(" ")[0].isalpha()
    return plain[:1].lower() + plain[1:] if is_word else plain


# --- rows and old names ------------------------------------------------------------------------------------------


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

    def has_end_of(self, key: str) -> bool:
        """Whether one of this name and `key` is the end of the other, or both are similar and have the same last part.

        An old name of purerl without a dot counts only as a whole.
        """
        if not (self.library or "." in self.name) or self.name.rpartition(".")[2] != key.rpartition(".")[2]:
            return False
        is_end = any(_is_suffix(*pair) for name in self.names for pair in ((key, name), (name, key)))
        return is_end or max(SequenceMatcher(None, key, name).ratio() for name in self.names) >= _SIMILAR

    @property
    def names(self) -> tuple[str, str]:
        """The short and the long form."""
        return self.name, self.long_name


def _is_suffix(part: str, whole: str) -> bool:
    return f".{whole}".endswith(f".{part}")


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
            long_name = _long(library, name)
            # The setting that corresponds to the key of "key=value" comes first, without its value.
            settings = (row.settings[0].partition("=")[0],) if value else row.settings
            yield _Alias(library.name, name, long_name, settings, row.section, value, row.settings, row.note)


def _long(library: Library, name: str) -> str:
    first, dot, rest = name.partition(".")
    return library.prefixes.get(first, first) + dot + rest


def _describe(aliases: Sequence[_Alias], value: Any, line: str) -> str:
    """A remedy made from `aliases`, which have one library and one name."""
    first = aliases[0]
    if first.settings == (first.name,):
        return f"it is called {first.name!r} here{_assignment(aliases, value, line)}"
    if not first.library:
        names = _join(first.settings, "or")
        return f"it is called {names} here{_assignment(aliases, value, line)} (it was {first.name!r})"
    sections: dict[str, list[str]] = {}
    for alias in aliases:
        sections.setdefault(_join(alias.settings, "and"), []).append(alias.section)
    if len(sections) == 1:
        return f"{first.library}'s {first.name!r} is {next(iter(sections))} here{_assignment(aliases, value, line)}"
    choices = " or ".join(f"{settings} ({', '.join(dict.fromkeys(names))})" for settings, names in sections.items())
    return f"{first.library}'s {first.name!r} is {choices} here" + (f": {line}" if line else "")


def _assignment(aliases: Sequence[_Alias], value: Any, line: str) -> str:
    """The lines to write in place of the alias with `value`, and what differs; empty if neither is known."""
    if line:
        return f": {line}{_appended(aliases[0].note)}"
    if value is NOTHING:
        return ""
    texts = {str(value).lower(), write(value).lower()}
    named = [alias for alias in aliases if alias.value and alias.value.lower() in texts]
    plain = [alias for alias in aliases if not alias.value]
    if named:
        return f": write {_lines(named[0].written)}"
    if not plain:
        return ""
    first, lines, hint = plain[0], "", ""
    if found := _answers_for(first):
        every = {(_translated(one, value), _hint(library, one, value)) for library, one in found}
        lines, hint = next(iter(every)) if len(every) == 1 else ("", "")
    elif not first.note and len(first.settings) == 1 and "=" not in first.settings[0]:
        lines = f"{first.settings[0]} = {write(value)}"
    if value is True and all("=" in setting for setting in first.settings):
        lines, hint = _lines(first.settings), ""
    return (f": write {lines}" if lines else "") + _appended(first.note) + hint


def _answers_for(alias: _Alias) -> list[tuple[str, Answer]]:
    """The answers for the name of `alias`, each with its library; empty for an old name of purerl."""
    library = next((name for name in LIBRARIES if read_library(name).name == alias.library), None)
    found = (answer(library, full) for full in full_names(library, alias.name)) if library else ()
    return [(str(library), one) for one in found if one is not None and one.to]


def _lines(settings: Iterable[str]) -> str:
    """Settings with values, ``key=value``, as lines of TOML."""
    return ", ".join(_spaced(setting) for setting in settings if "=" in setting)


def _spaced(setting: str) -> str:
    """``key=value`` as a line of TOML."""
    key, _, value = setting.partition("=")
    is_text = value.replace("_", "").isalnum() and not value.isdigit() and value not in ("true", "false", "inf")
    return f"{key} = {write(value) if is_text else value}"


def _join(names: Iterable[str], conjunction: str) -> str:
    *first, last = map(repr, names)
    return f"{', '.join(first)} {conjunction} {last}" if first else last
