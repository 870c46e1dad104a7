"""The generated part of ARCHITECTURE.md: the table of packages, from the first lines of their docstrings.

`python -m tests.library.architecture` writes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.library.import_rules import LAYERS

__all__ = ["PAGE", "entries", "sentence", "table", "with_table"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
_TABLE = re.compile(r"(?<=<!-- packages -->\n).*?(?=<!-- end of packages -->)", re.DOTALL)


def entries() -> Iterator[Path]:
    """The packages and modules of purerl at the top, by layer."""
    for name in (name for layer in LAYERS for name in layer if name):
        folder = ROOT / "purerl" / name
        yield folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def sentence(path: Path) -> str:
    """The first line of the docstring of the module at `path`."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def table() -> str:
    """The table of all entries, in Markdown."""
    names = {path: f"{path.parent.name}/" if path.stem == "__init__" else path.name for path in entries()}
    rows = [f"| `{name}` | {sentence(path)} |" for path, name in names.items()]
    return "\n".join(["", "| package or module | contents |", "|---|---|", *rows, "", ""])


def with_table(page: str) -> str:
    """The text of the page with the table as it should be."""
    return _TABLE.sub(lambda match: table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
