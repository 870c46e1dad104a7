"""Several runs in one process of torchrun: each one ends, also after a failure and an interrupt, and leaves nothing."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.placement import many_runs
from tests.ranks import forked_ranks

pytestmark = pytest.mark.parallel

LONGEST = 45.0  # seconds, also on a busy machine: a rank that waits for one that has left would wait for 60


def _runs(directory: Path, kind: str, number: int) -> list[list[list[Any]]]:
    """The reports of `many_runs`, by rank."""
    forked_ranks("-m", many_runs.__name__, str(directory), kind, str(number))
    files = [directory / f"rank-{rank}.jsonl" for rank in range(2)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _expected(run: int, rank: int) -> str:
    """The end of a run of `many_runs` on `rank`."""
    action, of_rank = many_runs.FAILURES.get(run, ("", None))
    if not action:
        return "2 steps"
    error = {"raise": "ZeroDivisionError: a bug in a callback", "interrupt": "KeyboardInterrupt: "}[action]
    return error if of_rank in (None, rank) else f"EngineError: rank {of_rank} has failed: {error}"


def _assert_nothing_grows(runs: list[list[Any]]) -> None:
    """The process groups of a run with a divided model have 9 threads and 13 open files."""
    for held in (3, 4):
        assert runs[-1][held] < runs[2][held] + 6, [run[held] for run in runs]


def test_twenty_runs_with_failures_and_interrupts_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    ranks = _runs(tmp_path, "fake", 20)
    for rank, runs in enumerate(ranks):
        assert [end for _, end, *_ in runs] == [_expected(run, rank) for run in range(20)]
        assert max(seconds for _, _, seconds, *_ in runs) < LONGEST
        _assert_nothing_grows(runs)
    assert not [path.name for path in folder.iterdir() if path.name.startswith("purerl-ranks-")]


def test_runs_with_a_divided_model_release_their_process_groups(tmp_path: Path) -> None:
    for runs in _runs(tmp_path, "divided", 5):
        assert [end for _, end, *_ in runs] == ["1 steps", "1 steps", "1 steps", "1 steps", "1 steps"]
        _assert_nothing_grows(runs)
