"""Workers that collect tests in a new clone: the first is alone."""

from __future__ import annotations

import fcntl
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import collection
from tests.collection import is_compiled, one_after_another


@pytest.mark.skipif(sys.dont_write_bytecode, reason="Python writes no compiled files")
def test_tests_that_run_are_compiled_and_a_copy_or_a_changed_file_is_not(tmp_path: Path) -> None:
    here = Path(__file__)
    assert is_compiled([here])
    copied = Path(shutil.copytree(here.parent, tmp_path / "copy", ignore=lambda folder, names: {*names} - {here.name}))
    assert not is_compiled([copied / here.name])
    assert is_compiled([*[here] * 9, copied / here.name]), "a tenth may be new"
    (copied / "__pycache__").mkdir()
    [compiled] = (here.parent / "__pycache__").glob(f"{here.stem}.*-pytest-{pytest.__version__}.pyc")
    shutil.copy(compiled, copied / "__pycache__")
    assert is_compiled([copied / here.name])
    (copied / here.name).write_text("# changed later\n")
    assert not is_compiled([copied / here.name])


def _enter(action: Callable[[], None], new: list[Path]) -> None:
    with one_after_another(new):
        action()


def test_the_first_worker_is_alone_and_the_others_then_enter_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, waiting, order = threading.Event(), threading.Semaphore(0), []
    together, lock = threading.Barrier(2), fcntl.flock

    def flock(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            waiting.release()
        lock(file, operation)

    def first() -> None:
        entered.set()
        assert all(waiting.acquire(timeout=60.0) for _ in range(2))
        order.append("first")

    def later() -> None:
        order.append("later")
        together.wait(60.0)

    monkeypatch.setattr(collection.fcntl, "flock", flock)
    monkeypatch.setattr(collection.sys, "dont_write_bytecode", False)
    monkeypatch.setattr(collection.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "session")
    new = [tmp_path / "test_new.py"]
    with ThreadPoolExecutor(3) as executor:
        results = [executor.submit(_enter, first, new)]
        assert entered.wait(60.0)
        results += [executor.submit(_enter, later, new) for _ in range(2)]
        for result in results:
            result.result(timeout=60.0)
    assert order == ["first", "later", "later"]
    assert not [*tmp_path.iterdir()]


def test_without_workers_or_compiled_files_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection.tempfile, "gettempdir", lambda: str(tmp_path / "does not exist"))
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    _enter(lambda: None, [tmp_path / "test_new.py"])
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "session")
    monkeypatch.setattr(collection.sys, "dont_write_bytecode", True)
    _enter(lambda: None, [tmp_path / "test_new.py"])
