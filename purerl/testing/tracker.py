"""What every tracker has to do, as a suite for anyone's: `check_tracker`.

    def test_it(tmp_path) -> None:
        check_tracker(lambda run_info: build(Config(), run_info=run_info), folder=tmp_path, shown=shown)

`shown` is the oracle: what the tracker's library says of the run, read in another way than it was told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from purerl.protocols import RunInfo, Tracker

__all__ = ["check_tracker"]

_HOSTILE = "<b>|</b>\n[red]\x1b[31m\u202e `'\" \U0001f600 " + "long " * 500
_SETTINGS = {f"section.{k}": k for k in range(150)} | {
    "text": _HOSTILE,
    "list": [0.9, "a"],
    "on": True,
    "0/odd ü": None,
}

Shown = Callable[[RunInfo], Mapping[str, Mapping[int, float]]]


def check_tracker(build: Callable[[RunInfo], Tracker], *, folder: Path, shown: Shown | None = None) -> None:
    """Assert that what `build` makes takes all that a run tells, and shows each step of each run once.

    It is told of a run that fails after five steps and goes on from the second, and of another run. `shown` gives what
    is then known of a run: by metric and step, its value; values of one step that differ must not be merged in it.

    Raises: AssertionError that says what is wrong.
    """
    subject = RunInfo("suite", "5a1c0ffee5a1c0ff", folder, _SETTINGS, first=0)
    other = evolve(subject, identity="0ddba110ddba1100")
    _tell(build(subject), range(5), failed=True)
    _tell(build(evolve(subject, first=2)), range(2, 8), failed=False)
    _tell(build(other), range(2), failed=False)
    if shown is not None:
        for one, steps in ((subject, 8), (other, 2)):
            found, told = shown(one), [_record(step) for step in range(steps)]
            for name in ("reward/mean", "eval/accuracy"):
                wanted = {record["step"]: record[name] for record in told if name in record}
                assert dict(found[name]) == wanted, f"{name} was told as {wanted} and is shown as {dict(found[name])}"


def _tell(tracker: Tracker, steps: Iterable[int], *, failed: bool) -> None:
    assert isinstance(tracker, Tracker), f"{tracker!r} lacks a method of Tracker"
    for step in steps:
        if step % 2 == 0:
            tracker.completions(step, [_row(None), _row(0.5), _row(-1.0)])
        tracker.log(_record(step))
    tracker.close(failed=failed)


def _record(step: int) -> dict[str, Any]:
    """Powers of two: exact in every library. An evaluation every third step; odd names and values."""
    odd = {
        "reward/an odd (name): ü": 1.0,
        "policy/approx_kl": math.nan,
        "policy/ratio": math.inf,
        "rollout/sampled": 64,
    }
    evaluation = {"eval/accuracy": 2.0**-step} if step % 3 == 0 else {}
    return {"step": step, "reward/mean": float(step), **odd, **evaluation}


def _row(reward: float | None) -> dict[str, Any]:
    return {"prompt": _HOSTILE, "completion": _HOSTILE, "finish": "stop", "reward": reward}
