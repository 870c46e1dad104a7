"""The published list of planted errors is that of the code."""

from __future__ import annotations

from pathlib import Path

from tests.testing.planted.page import page


def test_page_is_up_to_date() -> None:
    path = Path(__file__).parents[3] / "docs/reference/planted_errors.md"
    assert path.read_text(encoding="utf-8") == page(), "run: python -m tests.testing.planted.page > " + str(path)
