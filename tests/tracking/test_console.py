"""The console where it is no terminal: lines that stay."""

from __future__ import annotations

import pytest

from purerl.tracking.console import Console


def test_the_first_and_the_last_step_have_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Console("a run", steps=3) as console:
        for step in range(4):
            console.log({"step": step, "reward/mean": step / 4})
    assert capsys.readouterr().out.splitlines() == ["a run: step 0  reward 0.000", "a run: step 3  reward 0.750"]
