"""llms.txt: every page of the sidebar has a line with its title and what it is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.llms import llms_txt

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
GENERATED = ("algorithms", "mathematics", "migration", "presets", "reference")


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """The directory of the pages, with a page in the place of each that the build generates."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for path in (ROOT / "docs").glob("*.md"):
        (docs / path.name).write_bytes(path.read_bytes())
    for path in ROOT.glob("*.md"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name in re.findall(rf"^((?:{'|'.join(GENERATED)})/\w+)$", INDEX, re.MULTILINE):
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / f"{name}.md").write_text(f"# The page {name}\n\nIt has a [link](x.md). And more.\n", encoding="utf-8")
    return docs


def test_every_page_of_the_sidebar_has_a_line(pages: Path) -> None:
    text = llms_txt(pages)
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    names = [name for block in re.findall(r":caption: [^\n]+\n\n(.*?)```", INDEX, re.DOTALL) for name in block.split()]
    assert [re.search(r"\]\(_sources/(.*)\.md\.txt\)", line)[1] for line in lines] == names
    assert "- [The page algorithms/index](_sources/algorithms/index.md.txt): It has a link." in lines
    assert "- [Changelog](_sources/CHANGELOG.md.txt): Changes that users notice, newest first." in lines
    without_sentence = [line for line in lines if not re.search(r"\): \S", line)]
    assert without_sentence in ([], [line for line in lines if "/cli.md" in line])


def test_it_follows_the_convention(pages: Path) -> None:
    title, empty, summary, *_ = llms_txt(pages).splitlines()
    assert re.fullmatch(r"# purerl \d+\.\d+\.\d+", title)
    assert not empty
    assert summary.startswith("> purerl is a library for reinforcement learning of large language models.")
    assert re.findall(r"^## (.+)$", llms_txt(pages), re.MULTILINE) == re.findall(r":caption: (.+)", INDEX)
