"""docs/llms.txt: the pages in one list for language models, with a line for each (https://llmstxt.org).

The sections and their order are those of the sidebar. The lines are those of the index of each folder. The links lead
to the pages in Markdown, which Sphinx copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import purerl

__all__ = ["FOLDERS", "llms_txt"]

FOLDERS = ("tutorials", "how-to", "reference", "explanation")
"""The folders of pages, each with an index, in the order of the sidebar."""

_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w/]+)\.md\): (.+)$", re.MULTILINE)


def llms_txt(directory: Path) -> str:
    """The list of the pages in the folders of `directory`."""
    readme = (directory.parent / "README.md").read_text(encoding="utf-8")
    summary = " ".join(readme.split("\n\n")[1].split())
    sections = ("\n".join(_section(directory, folder)) for folder in FOLDERS)
    return "\n\n".join([f"# purerl {purerl.__version__}", f"> {summary}", *sections]) + "\n"


def _section(directory: Path, folder: str) -> Iterator[str]:
    index = (directory / folder / "index.md").read_text(encoding="utf-8")
    yield f"## {index.partition(chr(10))[0].removeprefix('# ')}"
    yield ""
    for title, page, sentence in _ENTRY.findall(index):
        yield f"- [{title}](_sources/{folder}/{page}.md.txt): {sentence}"
