"""For tests of servers: the interpreter of an engine, which is not started."""

from __future__ import annotations

import pytest


@pytest.fixture
def interpreter_has_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking it, for tests of other things. test_settings.py has tests that start it."""
    monkeypatch.setattr("purerl.backends.serving.settings.can_import", lambda python, package: True)
