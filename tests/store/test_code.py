"""The versions of a run's code: after which steps they were used, also if the run resumes from an older checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from purerl.errors import RunDirectoryError
from purerl.store.code import check_code, code_changes, describe_code_change, record_code

A, B, C = ({"reward.py": digest} for digest in "abc")


def test_a_version_is_recorded_when_it_is_first_used(tmp_path: Path) -> None:
    for files, step in ((A, 0), (A, 3), (B, 5), (B, 7), (A, 9)):
        record_code(tmp_path, files, step)
    assert [step for step, _ in code_changes(tmp_path)] == [5, 9]


def test_a_version_whose_steps_are_done_again_is_forgotten(tmp_path: Path) -> None:
    for files, step in ((A, 0), (B, 4), (C, 2)):
        record_code(tmp_path, files, step)
    assert code_changes(tmp_path) == [(2, "edited: reward.py")]
    record_code(tmp_path, B, 0)
    assert code_changes(tmp_path) == []


def test_code_is_compared_with_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    record_code(tmp_path, A, 0)
    check_code(tmp_path, B, [], is_accepted=False)  # no step is kept
    with pytest.raises(RunDirectoryError, match="since step 4"):
        check_code(tmp_path, B, [2, 4], is_accepted=False)
    check_code(tmp_path, B, [2, 4], is_accepted=True)
    record_code(tmp_path, B, 4)
    check_code(tmp_path, A, [2, 4], is_accepted=False)  # no step of the new version was kept
    with pytest.raises(RunDirectoryError, match="since step 5"):
        check_code(tmp_path, A, [4, 5], is_accepted=False)


def test_many_files_are_counted() -> None:
    files = {f"{number}.py": "a" for number in range(7)}
    assert describe_code_change({}, files) == "new: 0.py, 1.py, 2.py, 3.py, 4.py and 2 more"
