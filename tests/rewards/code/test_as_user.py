"""The attacks on rewards again as an ordinary user, if the tests run as root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox.as_user import ONLY_FOR_ROOT, run_tests

pytestmark = [pytest.mark.slow, *ONLY_FOR_ROOT]


def test_attacks_on_rewards_fail_as_an_ordinary_user_too() -> None:
    assert run_tests(Path(__file__).with_name("test_attacks.py")) > 200
