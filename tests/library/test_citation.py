"""CITATION.cff has the version of the package, and SECURITY.md links to pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import purerl

ROOT = Path(__file__).parents[2]


def test_the_citation_has_the_version_and_the_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == purerl.__version__
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)


def test_the_security_policy_links_to_sections_that_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((docs/[\w/-]+\.md)#?([\w-]*)\)", text)
    assert len(links) >= 4
    for page, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, (page, anchor)
    assert "@" not in text, "reports go to the repository, not to an address"
