"""CITATION.cff has the version of the package, and SECURITY.md no address."""

from __future__ import annotations

from pathlib import Path

import yaml

import purerl

ROOT = Path(__file__).parents[2]


def test_the_citation_has_the_version_and_the_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == purerl.__version__
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)


def test_the_security_policy_has_no_address() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "@" not in text, "reports go to the repository, not to an address"
