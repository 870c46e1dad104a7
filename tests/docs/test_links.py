"""Every link between pages, and every page that code names, exists; so does the section that a link names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.generate.llms import FOLDERS
from purerl.config.aliases import LIBRARIES
from purerl.plugins import names

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "docs" / "generate" / "templates"
PAGES = sorted(
    page
    for folder in (".", "docs", *(f"docs/{name}" for name in FOLDERS), "docs/how-to/skills")
    for page in ROOT.glob(f"{folder}/*.md")
)
GENERATED = {
    "algorithms": {"index", *names("algorithm")},
    "mathematics": {"answers"},
    "migration": {f"from_{library}" for library in LIBRARIES},
    "modifiers": {*names("modifier")},
    "modules": {"index"},
    "presets": {"index"},
    "settings": {"index"},
}
"""The pages in the folders of docs/reference, which docs/generate writes."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
INCLUDE = re.compile(r"^```\{include\} (\S+)$", re.MULTILINE)
FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<!/main/)\bdocs/[\w./-]+\.(?:md|toml|png|svg)\b(?:#[\w-]+)?")


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, and of those of the pages that it includes."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    own = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    included = ((page.parent / name).resolve() for name in INCLUDE.findall(text))
    return own.union(*(_anchors(path) for path in included if path.is_file()))  # without tables that are generated


def _exists(target: str, page: str) -> bool:
    """Whether a link on a page leads to a file, or to a page that is generated."""
    name, _, anchor = target.partition("#")
    path = os.path.normpath(Path(page).parent / name) if name else page
    kind, _, stem = path.removeprefix("docs/reference/").removesuffix(".md").rpartition("/")
    if path.startswith("docs/reference/") and kind in GENERATED:
        return stem in GENERATED[kind]
    return (ROOT / path).is_file() and (not anchor or anchor in _anchors(ROOT / path))


def _broken(text: str, page: str) -> list[str]:
    """The links in the text of a page that lead nowhere."""
    targets = LINK.findall(FENCE.sub("", text))
    return [target for target in targets if not target.startswith(("http:", "https:")) and not _exists(target, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_pages_and_sections(page: Path) -> None:
    assert _broken(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()) == []


@pytest.mark.parametrize("name", ["ARCHITECTURE", "CHANGELOG", "CONTRIBUTING"])
def test_links_of_a_page_of_the_project_also_lead_somewhere_from_docs(name: str) -> None:
    """Sphinx includes the page in a page of the same name in docs/, without "docs/" in its links."""
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
    assert _broken(text, f"docs/{name}.md") == []


@pytest.mark.parametrize("template", sorted(TEMPLATES.iterdir()), ids=lambda path: path.name)
def test_links_of_a_template_lead_to_pages_and_sections(template: Path) -> None:
    page = f"docs/reference/migration/{template.name.removesuffix('.template')}"
    text = template.read_text(encoding="utf-8")
    assert [link for link in _broken(text, page) if link[0] != "#"] == []


def test_the_first_link_of_the_readme_is_the_loop_in_one_screen() -> None:
    assert LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0] == "examples/rl_loop.py"


def _texts() -> Iterator[Path]:
    folders = (
        "purerl",
        "cli",
        "tests",
        "property_tests",
        "benchmarks",
        "examples",
        "docs",
        "changes",
        ".github",
        ".ci",
    )
    yield from (ROOT / name for name in ("noxfile.py", "pyproject.toml", *(page.name for page in ROOT.glob("*.md"))))
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()):
        parts = path.relative_to(ROOT).parts
        is_generated = "_build" in parts or (parts[:2] == ("docs", "reference") and len(parts) > 3)
        if path.suffix in (".py", ".md", ".toml", ".yml", ".template", "") and not is_generated and path.name[0] != ".":
            yield path


def test_pages_that_code_messages_and_texts_name_exist() -> None:
    """A page is named by its path from the root of the repository."""
    missing = {}
    for path in _texts():
        found = [
            name
            for name in NAMED.findall(path.read_text(encoding="utf-8", errors="ignore"))
            if not _exists(name, "README.md")
        ]
        if found:
            missing[path.relative_to(ROOT).as_posix()] = found
    assert missing == {}


def test_links_that_lead_nowhere_are_found() -> None:
    text = "[a](sft.md) [b](no.md) [c](sft.md#no) [d](../reference/algorithms/no.md) [e](#no)\n```\n[f](no.md)\n```\n"
    assert _broken(text, "docs/tutorials/dpo.md") == ["no.md", "sft.md#no", "../reference/algorithms/no.md", "#no"]
