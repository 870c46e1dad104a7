"""Markdown: tables, that of the settings of a configuration, and links to papers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import attrs

__all__ = ["linked", "settings", "table"]

_PAPER = re.compile(r"\b\d{4}\.\d{5}\b")


def linked(text: str) -> str:
    """`text` with a link for each arXiv number in it.

    >>> linked("PPO (1707.06347)")
    'PPO ([1707.06347](https://arxiv.org/abs/1707.06347))'
    """
    return _PAPER.sub(r"[\g<0>](https://arxiv.org/abs/\g<0>)", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, without the columns in which nothing stands; nothing where there is no row.

    >>> print(table(["name", "unit", "range"], [["beta", "", "|x| < 1"]]))
    | name | range |
    | --- | --- |
    | beta | \\|x\\| < 1 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    filled = [any(column) for column in zip(*cells, strict=True)]
    lines = [_row(compress(row, filled)) for row in (head, ["---"] * len(head), *cells)]
    return "\n".join(lines) if cells else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def settings(config: Any) -> str:
    """Every field of the attrs class `config`: its default, what it may be, and what it means."""
    return table(["setting", "default", "range", "what it is"], _settings(config))


def _settings(config: Any) -> Iterator[list[str]]:
    explained = dict(re.findall(r"^(\w+) {2,}(.+)", inspect.getdoc(config) or "", re.MULTILINE))
    for field in attrs.fields(config):
        said = field.metadata
        unit = f" ({said['unit']})" if said.get("unit") else ""
        meaning = said.get("help") or explained.get(field.name, "")
        yield [f"`{field.name}`", _default(field.default), said.get("need", ""), meaning + unit]


def _default(value: Any) -> str:
    """As TOML writes it; a section that is made anew each time by its name."""
    match value:
        case attrs.NOTHING:
            return "required"
        case None:
            return "none"
        case object(factory=factory):
            return f"`{factory.__name__}()`"
        case float() if value == int(value):
            return f"`{value:.1f}`"
        case float():
            return f"`{value:g}`"
    return f"`{json.dumps(value)}`"
