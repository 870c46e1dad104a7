"""A translation as a TOML file: the settings with comments, and lists of all settings that were given."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import fields_dict

from purerl.config.listing import toml
from purerl.config.overrides import parse
from purerl.config.schema import RunConfig
from purerl.config.structure import from_dict
from purerl.errors import ConfigError
from purerl.porting.outcomes import FILL_IN, Setting, Translation

__all__ = ["table_of", "write_toml"]

_WIDTH = 120


def table_of(settings: Iterable[Setting]) -> dict[str, Any]:
    """`settings` as nested tables, as `purerl.config.structure.from_dict` reads them.

    >>> table_of([Setting("trainer.lr", 0.1), Setting("seed", 0)])
    {'trainer': {'lr': 0.1}, 'seed': 0}
    """
    table: dict[str, Any] = {}
    for setting in settings:
        *sections, last = parse(f"{setting.key}=")[0]
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = setting.value
    return table


def write_toml(translation: Translation, source: str) -> str:
    """The file for `purerl train`. `source` says in the first line where the settings come from."""
    top = [setting for setting in translation.settings if len(_parts(setting)) == 1]
    sections: dict[tuple[str, ...], list[Setting]] = {}
    for setting in translation.settings:
        if len(parts := _parts(setting)) > 1:
            sections.setdefault(parts[:-1], []).append(setting)
    lines = [*_head(translation, source), *_assignments(sorted(top, key=lambda setting: _order(_parts(setting))))]
    for section in sorted(sections, key=_order):
        lines += ["", f"[{'.'.join(map(_quoted, section))}]", *_assignments(sorted(sections[section], key=_is_no_kind))]
    return "\n".join([*lines, *_lists(translation), ""])


def _is_no_kind(setting: Setting) -> bool:
    return _parts(setting)[-1] != "kind"


def _parts(setting: Setting) -> tuple[str, ...]:
    return tuple(parse(f"{setting.key}=")[0])


_FIELDS = [*fields_dict(RunConfig)]


def _order(parts: tuple[str, ...]) -> Any:
    """The key by which sections are sorted: the order of the fields of a run, each section before its own sections."""
    return _FIELDS.index(parts[0]), len(parts) > 1


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else toml(part)


def _assignments(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        line = f"{_quoted(_parts(setting)[-1])} = {toml(setting.value)}"
        if setting.comment and "\n" not in setting.comment and len(line) + len(setting.comment) + 4 <= _WIDTH:
            yield f"{line}  # {setting.comment}"
        else:
            for part in setting.comment.splitlines():
                yield from [f"# {part}"] if part.startswith(" ") else _wrapped(part)
            yield line


def _wrapped(text: str, indent: str = "") -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2, subsequent_indent=indent))


def _head(translation: Translation, source: str) -> Iterator[str]:
    yield from _wrapped(f"{source}, translated from {translation.library}. The lists at the end have every setting.")
    yield "# Check it with `purerl train FILE.toml --dry-run`."
    if translation.notes:
        yield "# Notes:"
        for note in translation.notes:
            yield from (f"#   {line}" for line in textwrap.wrap(note, _WIDTH - 4))
    unfilled = sum(_has_gap(setting.value) for setting in translation.settings)
    if unfilled:
        count = "one value is" if unfilled == 1 else f"{unfilled} values are"
        yield f'# "{FILL_IN}": {count} known only when the code runs.'
    elif problems := _problems(translation):
        yield "# purerl needs further settings, or other ones:"
        yield from (f"#   {line}" for line in problems.splitlines())
    yield ""


def _has_gap(value: Any) -> bool:
    """Whether `value`, or a part of it, is to be filled in."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return value == FILL_IN or any(map(_has_gap, parts))


def _problems(translation: Translation) -> str:
    """The errors of the configuration that the settings are; empty if there are none."""
    try:
        from_dict(RunConfig, table_of(translation.settings))
    except ConfigError as error:
        return str(error)
    return ""


def _lists(translation: Translation) -> Iterator[str]:
    yield from _list("Translated", {name: ", ".join(keys) for name, keys in translation.translated.items()})
    yield from _list("Not needed", translation.unneeded)
    yield from _list("Not there", translation.missing)


def _list(title: str, items: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"# --- {title} ---", "#")
    if not items:
        yield "# (none)"
    for name, text in items.items():
        yield from _wrapped(f"{name}: {text}", indent="    ")
