"""Conformance suite for trackers: `check_tracker`.

    def test_tracker_conforms(tmp_path) -> None:
        check_tracker(lambda run_info: build(Config(), run_info=run_info), folder=tmp_path, shown=read_metrics)

`read_metrics` reads the metrics of a run from the tracking library, independently of the tracker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import evolve

from purerl.monitoring.trackers.protocol import RunInfo, SupportsWarnings, Tracker

__all__ = ["check_tracker"]

_UNUSUAL_TEXT = "<b>|</b>\n[red]\x1b[31m\u202e `'\" \U0001f600 " + "long " * 500
_SETTINGS = {f"section.{k}": k for k in range(150)} | {
    "text": _UNUSUAL_TEXT,
    "list": [0.9, "a"],
    "on": True,
    "0/odd ü": None,
}

Shown = Callable[[RunInfo], Mapping[str, Mapping[int, float]]]
ShownWarnings = Callable[[RunInfo], Collection[str]]

_WARNINGS = {1: "no_variance", 3: "entropy_collapse", 6: "truncation"}


def check_tracker(
    build: Callable[[RunInfo], Tracker],
    *,
    folder: Path,
    shown: Shown | None = None,
    shown_warnings: ShownWarnings | None = None,
) -> None:
    """Test that a tracker accepts everything that a run logs, and stores each step of each run once.

    The suite logs a run that fails after step 4 and resumes at step 2, and a second, independent run. If the tracker
    has the method `warn`, the first run also has warnings in some steps.

    build     run info -> the tracker that is tested
    folder    a directory for the tracker's files
    shown     run info -> {metric: {step: value}}, the metrics that the tracking library has stored for this run. If it
              has several values for a step, `shown` must not merge them. Without `shown`, only the calls are tested.
    shown_warnings  run info -> the names of the warnings that the tracking library has stored for this run. Without it,
              only the calls are tested

    Raises: AssertionError with the metric, the values that were logged and the values that are stored; or with the
    names of warnings that are missing.
    """
    run_info = RunInfo("suite", "5a1c0ffee5a1c0ff", folder, _SETTINGS, first=0)
    second_run = evolve(run_info, identity="0ddba110ddba1100")
    _log_run(build(run_info), range(5), failed=True, warnings=_WARNINGS)
    _log_run(build(evolve(run_info, first=2)), range(2, 8), failed=False, warnings=_WARNINGS)
    _log_run(build(second_run), range(2), failed=False)
    if shown is not None:
        for info, num_steps in ((run_info, 8), (second_run, 2)):
            stored, logged = shown(info), [_record(step) for step in range(num_steps)]
            for name in ("reward/mean", "eval/accuracy"):
                expected = {record["step"]: record[name] for record in logged if name in record}
                actual = dict(stored[name])
                assert actual == expected, f"{name} by step: got {actual} from the library, expected {expected}"
    if shown_warnings is not None:
        for info, expected in ((run_info, {*_WARNINGS.values()}), (second_run, set())):
            actual = {*shown_warnings(info)}
            assert actual == expected, f"warnings: got {actual} from the library, expected {expected}"


def _log_run(
    tracker: Tracker, steps: Iterable[int], *, failed: bool, warnings: Mapping[int, str] = MappingProxyType({})
) -> None:
    assert isinstance(tracker, Tracker), (
        f"{tracker!r}: got an object without all methods of Tracker, expected a Tracker"
    )
    for step in steps:
        if step % 2 == 0:
            tracker.completions(step, [_messages(step) | _completion(reward) for reward in (None, 0.5, -1.0)])
        if step % 3 == 0:
            tracker.evaluation_completions(step, [_messages(step) | _attempt(correct=known) for known in (True, None)])
        tracker.log(_record(step))
        if step in warnings and isinstance(tracker, SupportsWarnings):
            tracker.warn(step, warnings[step], f"{_UNUSUAL_TEXT}, in step {step}")
    tracker.close(failed=failed)


def _record(step: int) -> dict[str, Any]:
    """A record with unusual names and values; those that are compared are small, so that all libraries store them."""
    unusual = {
        "reward/an odd (name): ü": 1.0,
        "policy/approx_kl": math.nan,
        "policy/ratio": math.inf,
        "rollout/sampled": 64,
    }
    evaluation = {"eval/accuracy": 2.0**-step, "eval/reward": 0.5, "eval/reward/a": 0.5} if step % 3 == 0 else {}
    return {"step": step, "reward/mean": float(step), **unusual, **evaluation}


def _completion(reward: float | None) -> dict[str, Any]:
    texts = {"prompt": _UNUSUAL_TEXT, "completion": _UNUSUAL_TEXT, "finish": "stop", "ground_truth": None}
    return {**texts, "reward": reward, "reward/an odd (name): ü": reward}


def _messages(step: int) -> dict[str, Any]:
    """The conversation of a row; only in some steps."""
    messages = [{"role": role, "content": _UNUSUAL_TEXT} for role in ("user", "assistant", "tool", "assistant")]
    return {"messages": json.dumps(messages)} if step % 4 == 2 else {}


def _attempt(*, correct: bool | None) -> dict[str, Any]:
    origin = {"data_set": "problems", "index": 7, "attempt": 0}
    return {**origin, **_completion(0.5), "tokens": 3, "answer": _UNUSUAL_TEXT, "correct": correct}
