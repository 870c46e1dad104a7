"""The page of laws by algorithms says what the tests do."""

from __future__ import annotations

from pathlib import Path

from test_laws import MODULES

from purerl.plugins import names
from purerl.testing.matrix import matrix


def test_the_page_is_not_stale():
    page = Path(__file__).parents[1] / "docs" / "laws.md"
    assert page.read_text(encoding="utf-8") == matrix(), "python -m purerl.testing.matrix > docs/laws.md"


def test_the_page_has_every_algorithm_that_the_laws_walk():
    assert list(MODULES) == names("algorithm")
