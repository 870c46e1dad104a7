"""docs/llms.txt: the pages in one list for language models, with a line for each (https://llmstxt.org).

The sections and their order are those of the sidebar. The links lead to the pages in Markdown, which Sphinx copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import purerl

__all__ = ["llms_txt"]

_TOCTREE = re.compile(r"^```\{toctree\}\n:hidden:\n:caption: ([^\n]+)\n\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r"\A```\{include\} (\S+)$", re.MULTILINE)
_NOT_TEXT = re.compile(r"^(```.*?^```$|---\n.*?^---$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def llms_txt(directory: Path) -> str:
    """The list of all pages in the sidebar, whose Markdown files are in `directory`."""
    index = (directory / "index.md").read_text(encoding="utf-8")
    sections = [f"## {caption}\n\n" + "\n".join(_lines(directory, names)) for caption, names in _TOCTREE.findall(index)]
    readme = (directory.parent / "README.md").read_text(encoding="utf-8")
    return "\n\n".join([f"# purerl {purerl.__version__}", f"> {_paragraph(readme)}", *sections]) + "\n"


def _lines(directory: Path, names: str) -> Iterator[str]:
    for name in names.split():
        title, sentence = _title_and_sentence(directory / f"{name}.md")
        yield f"- [{title}](_sources/{name}.md.txt)" + (f": {sentence}" if sentence else "")


def _title_and_sentence(path: Path) -> tuple[str, str]:
    """The title of a page, and the first sentence of its first paragraph."""
    text = path.read_text(encoding="utf-8")
    if included := _INCLUDE.search(text):
        text = (path.parent / included[1]).read_text(encoding="utf-8")
    title = next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")
    return title, re.split(r"(?<=[.?])\s", _paragraph(text), maxsplit=1)[0].removesuffix(":")


def _paragraph(text: str) -> str:
    """The first paragraph of a page, without its links, on one line; empty if it has only tables and code."""
    blocks = _NOT_TEXT.sub("", text).split("\n\n")
    found = next((block for block in blocks if block.strip() and block.lstrip("\n")[0] not in "#|-!<({ "), "")
    return " ".join(_LINK.sub(r"\1", found).split())
