"""The process that computes fingerprints: an answer, and what happens without one."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from purerl.algos import grpo
from purerl.algos.algebra import fingerprint
from purerl.testing import other_process
from purerl.testing.other_process import fingerprint_in_other_process

ALGORITHM = pickle.dumps(grpo.algorithm())


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    """Each test starts a process of its own."""
    other_process._process.cache_clear()
    yield
    other_process._process.cache_clear()


def start(monkeypatch: pytest.MonkeyPatch, code: str) -> subprocess.Popen:
    """A process that runs `code` instead of the server."""
    monkeypatch.setattr(other_process, "_SERVER", code)
    return other_process._process()


def test_process_that_does_not_answer_is_killed_and_replaced(monkeypatch):
    process = start(monkeypatch, "import time; time.sleep(600)")
    with monkeypatch.context() as context:
        context.setattr(other_process, "_ANSWER_TIMEOUT", 0.2)
        answer = fingerprint_in_other_process(ALGORITHM)
    assert answer == "EOFError('the process has ended, or was killed after 0.2 seconds')"
    assert process.wait(timeout=60) != 0
    monkeypatch.undo()
    assert fingerprint_in_other_process(ALGORITHM) == fingerprint(grpo.algorithm())


def test_process_that_has_ended_is_replaced(monkeypatch):
    start(monkeypatch, "").wait(timeout=60)
    assert fingerprint_in_other_process(ALGORITHM).startswith(("BrokenPipeError", "EOFError"))
    monkeypatch.undo()
    assert fingerprint_in_other_process(ALGORITHM) == fingerprint(grpo.algorithm())


def test_module_of_a_directory_that_was_added_later_is_found(tmp_path, monkeypatch):
    assert fingerprint_in_other_process(ALGORITHM) == fingerprint(grpo.algorithm())
    (tmp_path / "added_later.py").write_text("def doubled(value): return 2 * value\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    doubled = importlib.import_module("added_later").doubled
    assert fingerprint_in_other_process(pickle.dumps(doubled)) == fingerprint(doubled)


def test_process_that_does_not_exit_is_killed(monkeypatch):
    monkeypatch.setattr(other_process, "_EXIT_TIMEOUT", 0.2)
    code = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    start = time.monotonic()
    other_process._end(process)
    assert time.monotonic() - start < 60
    assert process.returncode != 0
