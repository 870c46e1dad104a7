"""The number of interruptions in tests: each test counts its own, and the run prints the sums at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["Count", "count_interruptions", "pytest_terminal_summary"]

Count = Callable[[str, int], None]
_PREFIX = "interruptions: "


@pytest.fixture(name="count_interruptions")
def count_interruptions(record_property: Callable[[str, object], None]) -> Count:
    """(kind, number) -> None: count `number` interruptions of a kind, after which everything was as it should be."""
    return lambda kind, number: record_property(_PREFIX + kind, number)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the interruptions of the tests that have passed, by kind, with the date, for docs/how-to/continuing.md."""
    counts = Counter[str]()
    for report in terminalreporter.stats.get("passed", ()):
        for name, number in report.user_properties if report.when == "call" else ():
            if name.startswith(_PREFIX):
                counts[name.removeprefix(_PREFIX)] += number
    if counts:
        kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(counts.items()))
        terminalreporter.write_line(f"{time.strftime('%Y-%m-%d')}: {counts.total()} interruptions. {kinds}")
