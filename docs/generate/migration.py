"""The pages "From TRL" and "From verl": text of templates, tables of purerl.config.aliases and docs.generate.fields.

A line of a template that is a comment is replaced by a table:

    <!-- presets -->         the presets of the library
    <!-- datasets -->        the types of data sets of the library
    <!-- rows: SECTION -->   the rows of that section
    <!-- fields: PART -->    all fields of a class, or of a part of the configuration

`{version}` and `{prefixes}` are replaced in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.generate import fields
from docs.generate.markdown import table
from purerl.config.aliases import LIBRARIES, Dataset, Library, Row, read_library
from purerl.config.presets import presets

__all__ = ["page", "pages"]

_TEMPLATES = Path(__file__).parent / "templates"
_TABLE = re.compile(r"^<!-- (presets|datasets|rows: .+|fields: .+) -->$", re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page of each library."""
    for name in LIBRARIES:
        template = (_TEMPLATES / f"from_{name}.md.template").read_text(encoding="utf-8")
        yield f"from_{name}", page(template, read_library(name))


def page(template: str, library: Library) -> str:
    """The Markdown of `template` with the tables of `library`.

    Raises: ValueError if the template does not show each section and each part of the library exactly once.
    """
    tables = {"presets": _presets(library), "datasets": _datasets(library)}
    tables |= {f"rows: {section}": _rows(library, section) for section in {row.section for row in library.rows}}
    tables |= {f"fields: {part}": text for part, text in fields.tables(library.name.lower()).items()}
    if sorted(_TABLE.findall(template)) != sorted(tables):
        raise ValueError(f"the template for {library.name} must show each of these once: {', '.join(sorted(tables))}")
    prefixes = ", and ".join(f"`{short}` stands for `{long}`" for short, long in library.prefixes.items())
    text = template.replace("{version}", library.version).replace("{prefixes}", prefixes)
    return _TABLE.sub(lambda match: tables[match[1]], text)


def _presets(library: Library) -> str:
    own = [preset for preset in presets().values() if preset.library == library.name]
    head = ["setting", "what it is", "what differs nevertheless"]
    rows = [[f"`algorithm.kind={p.name}`", p.summary, "<br>".join(p.differences)] for p in own]
    modifiers = {kind: texts for p in own for kind, texts in p.modifiers.items()}
    added = [
        [f"`algorithm.{kind}`", "a modifier, with any of them", "<br>".join(modifiers[kind])] for kind in modifiers
    ]
    return table(head, [*rows, *added])


def _datasets(library: Library) -> str:
    return table([f"{library.name}'s type", "columns", "format", "used as"], map(_dataset, library.datasets))


def _dataset(dataset: Dataset) -> list[str]:
    extra = f"; {_code(dataset.extra_columns)} for reward functions" if dataset.extra_columns else ""
    return [dataset.type, _code(dataset.columns) + extra, ", ".join(dataset.formats), dataset.example_type]


def _rows(library: Library, section: str) -> str:
    rows = [row for row in library.rows if row.section == section]
    return table([library.name, "purerl", "difference"], (_row(library, row) for row in rows))


def _row(library: Library, row: Row) -> list[str]:
    kind = "" if row.kind == "setting" else f" ({row.kind})"
    condition = f" with {_code(row.requires)}" if row.requires else ""
    notes = filter(None, [row.note, _exact(library, row)])
    return [_code(row.names) + kind + condition, _code(row.settings), "<br>".join(notes)]


def _exact(library: Library, row: Row) -> str:
    """The settings that compute the same as the library, and the differences of their preset."""
    if not row.exact:
        return ""
    preset = presets()[row.exact[0].partition("=")[2]]
    differences = " ".join(preset.differences) or "No difference is known."
    return f"As in {library.name}: {_code(row.exact)}. {differences}"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
