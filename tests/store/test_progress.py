"""The progress of files that are being written."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from purerl.ranks import ONE_RANK
from purerl.store.commit import commit, stage
from purerl.store.progress import checkpoint_progress, written

WAIT = 60.0  # seconds: for a hang
MIB = 2**20


def test_the_size_of_files_in_a_folder(tmp_path: Path) -> None:
    assert written(tmp_path / "missing") == written(tmp_path) == ""
    (tmp_path / "a").write_bytes(bytes(2 * MIB))
    assert written(tmp_path) == "2.0 MiB in 1 file"
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b").write_bytes(bytes(MIB))
    assert written(tmp_path, 12 * MIB) == "3.0 MiB of about 12.0 MiB in 2 files"


class _Weights:
    """Two files; the second one is written when `gate` is open."""

    def __init__(self) -> None:
        self.gate, self.has_begun = threading.Event(), threading.Event()

    def save(self, path: Path) -> None:
        (path / "first").write_bytes(bytes(MIB))
        self.has_begun.set()
        assert self.gate.wait(WAIT)
        (path / "second").write_bytes(bytes(3 * MIB))


def test_a_checkpoint_is_compared_with_the_one_before_while_it_is_written(tmp_path: Path) -> None:
    weights = _Weights()
    weights.gate.set()
    first = commit(tmp_path, 1, {"step": 1}, {"policy": weights}, keep=2)
    assert checkpoint_progress(first)() == "4.0 MiB in 4 files"

    weights.gate.clear()
    weights.has_begun.clear()
    staged = stage(tmp_path, 2, {"step": 2}, {"policy": weights}, keep=2)
    progress = checkpoint_progress(staged.path)
    assert progress() == ""
    thread = threading.Thread(target=partial(staged.write, ONE_RANK))
    thread.start()
    assert weights.has_begun.wait(WAIT)
    assert progress() == "1.0 MiB of about 4.0 MiB in 1 file"
    weights.gate.set()
    thread.join(WAIT)
    assert progress() == "4.0 MiB in 4 files"
