"""`purerl stacks`: the stacks of the processes of a run that hangs, asked for from another process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from purerl.errors import InputError
from purerl.placement.settings import Placement
from purerl.placement.stacks import Stacks, request_stacks, serve_stack_requests
from purerl_cli.main import app
from tests.forks import PROGRAMS
from tests.loop import hanging
from tests.loop.hanging import HANGS, stacks_of_hanging_run
from tests.placement.forked_launcher import start_forked

DEADLINE = 120.0


def test_a_process_answers_each_request_once_with_what_its_threads_do(tmp_path: Path) -> None:
    with serve_stack_requests(tmp_path, "run"):
        for _ in range(2):
            (answer,) = request_stacks(tmp_path, DEADLINE)
            assert answer.name == "run"
            assert answer.place.startswith(f"process {os.getpid()} on ")
            assert answer.text is not None
            assert answer.text.count("in test_a_process_answers_each_request_once") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_has_ended_is_not_asked(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with serve_stack_requests(tmp_path, 0), serve_stack_requests(tmp_path, 1):
        path = tmp_path / "ranks/1.stacks"
        path.write_text(re.sub(r"process \d+", f"process {process.pid}", path.read_text()))
        assert [answer.name for answer in request_stacks(tmp_path, DEADLINE)] == ["0"]


def test_a_process_on_another_host_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/3.stacks").write_text("process 17 on elsewhere\n")
    assert request_stacks(tmp_path, 0.2) == [Stacks("3", "process 17 on elsewhere", None)]
    result = CliRunner().invoke(app, ["stacks", str(tmp_path), "--timeout", "1"])
    assert result.exit_code == 1
    assert "no answer in 1 seconds, or it has ended; on its host: py-spy dump --pid 17" in result.output


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_directory_without_a_run_in_progress(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in progress"):
        request_stacks(tmp_path / name, 1.0)


def test_a_run_whose_trainer_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "subprocess", PROGRAMS.subprocess)
    (answer,) = stacks_of_hanging_run(tmp_path, Placement(), rank=0)
    assert answer.name == "run"
    assert HANGS.search(answer.text or "")


@pytest.mark.parallel
def test_two_ranks_of_which_one_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start_forked}))
    first, second = stacks_of_hanging_run(tmp_path, Placement(ranks=2), rank=1)
    assert "collective" in (first.text or "")
    assert HANGS.search(second.text or "")
