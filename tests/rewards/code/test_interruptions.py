"""Partial credit for tests before one that ignores its interruption."""

from __future__ import annotations

from contextlib import closing

import pytest

from purerl.rewards.code.grades import Grade
from purerl.rewards.kinds.code import Config, build
from purerl.sandbox import Limits, SandboxSettings

_SANDBOX = SandboxSettings(limits=Limits(max_memory=256))


@pytest.mark.slow
@pytest.mark.parametrize(
    "ignored",
    [
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
        "signal.signal(signal.SIGINT, lambda *_: None)",
    ],
)
def test_partial_credit_is_given_for_tests_before_one_that_ignores_interruptions(ignored: str) -> None:
    source = (
        f"import signal\ndef total(x):\n    if not x:\n        {ignored}\n    while not x: pass\n    return sum(x)\n"
    )
    calls = {"inputs": ["[1]", "[3]", "[]", "[2]"], "outputs": ["1", "3", "0", "2"], "fn_name": "total"}
    with closing(build(Config(timeout=3.0, partial_credit=True, sandbox=_SANDBOX))) as code:
        assert code.grade(source, calls) == Grade(1 / 2, "the program takes too long")
