"""The tests of attacks, again as an ordinary user, if they run as root: other permissions, and no cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from .as_user import ONLY_FOR_ROOT, run_tests

pytestmark = [pytest.mark.slow, *ONLY_FOR_ROOT]

_FILES = (
    "test_attacks_on_ends.py",
    "test_attacks_on_isolation.py",
    "test_attacks_on_network.py",
    "test_attacks_on_limits.py",
    "test_running.py",
    "test_streams.py",
)


def test_attacks_fail_as_an_ordinary_user_too() -> None:
    assert run_tests(*(Path(__file__).with_name(name) for name in _FILES)) > 60
