"""Fixtures of the tests of the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .chromium import opened_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The driver of a browser."""
    yield from opened_browser()
