"""Counts the numbers that agree with other libraries, and prints them at the end of the tests."""

from __future__ import annotations

import pytest

from .agreement import AGREED, EXPLAINED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for library in sorted({library for library, _ in AGREED}):
        equal = ", ".join(f"{AGREED[library, kind]:,} {kind}" for kind in ("values", "gradients"))
        terminalreporter.write_line(f"{library}: equal to rounding: {equal}")
        for (name, cause), count in sorted(EXPLAINED.items()):
            if name == library and count:
                terminalreporter.write_line(f"  {count:,} numbers differ: {cause}")
