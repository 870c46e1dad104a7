"""Counts the numbers that agree with other libraries, and prints them at the end of the tests."""

from __future__ import annotations

from collections import Counter

import pytest

from .agreement import AGREED, COMPARED, EXPLAINED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for library in sorted({library for library, _ in COMPARED}):
        compared, equal = (_of(library, counter) for counter in (COMPARED, AGREED))
        causes = {cause: count for (name, cause), count in sorted(EXPLAINED.items()) if name == library and count}
        line = f"{library}: compared {compared}; equal to rounding {equal}; different by a stated cause"
        terminalreporter.write_line(f"{line} {sum(causes.values()):,}")
        for cause, count in causes.items():
            terminalreporter.write_line(f"  {count:,}: {cause}")


def _of(library: str, counter: Counter[tuple[str, str]]) -> str:
    return " and ".join(f"{counter[library, kind]:,} {kind}" for kind in ("values", "gradients"))
