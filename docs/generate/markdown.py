"""Markdown: tables, the table of the settings of a class, docstrings, source code, and links to papers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import attrs

from docs.generate.formulas import is_formula, typeset

__all__ = ["PAPER", "block", "default", "linked", "settings", "source", "table"]

PAPER = re.compile(r"\b\d{4}\.\d{5}\b")
"""An arXiv number."""


def linked(text: str) -> str:
    """`text` with each arXiv number as a link.

    >>> linked("PPO (1707.06347)")
    'PPO ([1707.06347](https://arxiv.org/abs/1707.06347))'
    """
    return PAPER.sub(r"[\g<0>](https://arxiv.org/abs/\g<0>)", text)


def block(text: str) -> str:
    """A block of a docstring as Markdown: formulas are typeset, and arXiv numbers become links."""
    if not text.startswith("    "):
        return linked(text)
    return f"```{{math}}\n{typeset(text)}\n```" if is_formula(text) else text


def source(module: Any) -> str:
    """The source of `module` from its `Config` on, without the docstring and the imports."""
    lines = inspect.getsource(module).splitlines()
    _, first = inspect.getsourcelines(module.Config)
    return "\n".join(["```python", *lines[first - 1 :], "```"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without its empty columns. An empty string if there are no rows.

    >>> print(table(["name", "unit", "range"], [["beta", "", "|x| < 1"]]))
    | name | range |
    | --- | --- |
    | beta | \\|x\\| < 1 |
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    is_filled = [any(column) for column in zip(*cells, strict=True)]
    lines = [_row(compress(row, is_filled)) for row in (head, ["---"] * len(head), *cells)]
    return "\n".join(lines) if cells else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def settings(config: Any) -> str:
    """A table of the fields of the attrs class `config`: default, range and meaning."""
    return table(["setting", "default", "range", "meaning"], _settings(config))


def _settings(config: Any) -> Iterator[list[str]]:
    described = dict(re.findall(r"^(\w+) {2,}(.+)", inspect.getdoc(config) or "", re.MULTILINE))
    for field in attrs.fields(config):
        metadata = field.metadata
        unit = f" ({metadata['unit']})" if metadata.get("unit") else ""
        help_text = metadata.get("help") or described.get(field.name, "")
        name = "kind" if metadata.get("inline") else field.name
        yield [f"`{name}`", default(field.default), metadata.get("need", ""), help_text + unit]


def default(value: Any) -> str:
    """A default as TOML writes it. A section that a factory creates is shown by the name of its class."""
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
