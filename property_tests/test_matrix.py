"""docs/reference/laws.md is up to date and lists the algorithms that the laws test."""

from __future__ import annotations

from pathlib import Path

from test_laws import MODULES

from purerl.plugins import names
from purerl.testing.matrix import matrix


def test_page_is_up_to_date():
    page = Path(__file__).parents[1] / "docs" / "reference" / "laws.md"
    assert page.read_text(encoding="utf-8") == matrix(), "run: python -m purerl.testing.matrix > docs/reference/laws.md"


def test_page_lists_every_tested_algorithm():
    assert list(MODULES) == names("algorithm")
