"""llms.txt: every page of the sidebar has a line with its title and what it is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.llms import FOLDERS, llms_txt

DOCS = Path(__file__).parents[2] / "docs"
TEXT = llms_txt(DOCS)


def _toctree(page: Path) -> list[str]:
    [block] = re.findall(
        r"^```\{toctree\}\n:hidden:\n\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return block.split()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_of_the_sidebar_has_a_line_with_one_sentence(folder: str) -> None:
    lines = re.findall(rf"^- \[.+\]\(_sources/{folder}/(.+)\.md\.txt\): (.+)$", TEXT, re.MULTILINE)
    assert [page for page, _ in lines] == _toctree(DOCS / folder / "index.md")
    assert [sentence for _, sentence in lines if not re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", sentence)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_of_a_folder_is_in_its_index(folder: str) -> None:
    listed = [page for page in _toctree(DOCS / folder / "index.md") if "/" not in page]
    assert sorted(listed) == sorted(path.stem for path in (DOCS / folder).glob("*.md") if path.stem != "index")


def test_the_sidebar_has_the_folders_and_the_pages_of_the_project() -> None:
    assert _toctree(DOCS / "index.md") == [
        *(f"{folder}/index" for folder in FOLDERS),
        "ARCHITECTURE",
        "CONTRIBUTING",
        "CHANGELOG",
    ]


def test_it_follows_the_convention() -> None:
    title, empty, summary, *_ = TEXT.splitlines()
    assert re.fullmatch(r"# purerl \d+\.\d+\.\d+", title)
    assert not empty
    assert summary.startswith("> purerl is a library for reinforcement learning of large language models.")
    assert re.findall(r"^## (.+)$", TEXT, re.MULTILINE) == ["Tutorials", "How-to guides", "Reference", "Explanation"]
