"""Files and directories appear completely or not at all, and refusals of the file system are explained."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from purerl.backends.hf.weights.shard_files import os_errors
from purerl.data.convert import write_parquet
from purerl.errors import RunDirectoryError
from purerl.expert_routes import RouteStore
from purerl.report.page import _atomic_write
from purerl.store.step_files import write_step
from purerl.system.files import atomic_directory, translate_os_errors, write_atomically


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),  # an error of writing names no file
        PermissionError(errno.EACCES, "Permission denied", "/runs/a/metrics.jsonl"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "/runs"),
        OSError(errno.EROFS, "Read-only file system", "/runs/a/x.partial", None, "/runs/a/x"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/runs/a"),  # as from mkdir in /proc
        FileExistsError(errno.EEXIST, "File exists", "/runs"),
        OSError(errno.ENAMETOOLONG, "File name too long", "/runs/a"),
    ],
)
def test_refusal_in_or_at_the_directory_is_an_error_of_the_run_directory(error: OSError) -> None:
    with pytest.raises(RunDirectoryError) as caught, translate_os_errors(Path("/runs/a")):
        raise error
    assert str(caught.value).startswith(f"run directory '/runs/a' cannot be written\n  got:  {error}\n  need: a dir")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "/data/rows.parquet"),
        PermissionError(errno.EACCES, "Permission denied", "/data/rows.parquet"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ],
)
def test_other_errors_are_not_changed(error: OSError) -> None:
    with pytest.raises(OSError, match=error.strerror) as caught, translate_os_errors(Path("/runs/a")):
        raise error
    assert caught.value is error


def test_missing_file_of_an_existing_directory_is_not_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), translate_os_errors(tmp_path):
        (tmp_path / "data.json").read_text()


def test_deleted_directory_is_an_error_of_the_run_directory(tmp_path: Path) -> None:
    message = "got:  it was deleted or moved during the run"
    with pytest.raises(RunDirectoryError, match=message), translate_os_errors(tmp_path / "run"):
        (tmp_path / "run" / "metrics.jsonl").read_text()


def test_directory_in_the_place_of_a_file_is_an_error_of_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    message = r"is damaged\n  got:  .*Is a directory: '.*metrics.jsonl'"
    with pytest.raises(RunDirectoryError, match=message), translate_os_errors(tmp_path):
        (tmp_path / "metrics.jsonl").read_text()


def test_link_in_the_place_of_a_directory_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    (target := tmp_path / "target").mkdir()
    (target / "mine").touch()
    (tmp_path / "final").symlink_to(target)
    (tmp_path / "final.partial").symlink_to(target)
    with atomic_directory(tmp_path / "final") as folder:
        (folder / "new").touch()
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["new"]
    assert [path.name for path in target.iterdir()] == ["mine"]


WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda folder: write_atomically(folder / "a", "new"),
    "table": lambda folder: write_parquet(folder / "a", pa.table({"x": [1]})),
    "step": lambda folder: write_step(folder, 1, pa.table({"x": [1]})),
    "routes": lambda folder: RouteStore(folder).write(1, np.zeros((1, 1, 1))),
    "report": lambda folder: _write_page(folder / "a"),
}
"""Functions that write a file under another name first, which can be guessed."""

PARTIAL = {"text": "a.partial", "table": "a.partial", "step": "000001.partial", "report": "a.partial"}
PARTIAL["routes"] = f"1.{os.getpid()}.partial"


def _write_page(path: Path) -> None:
    with _atomic_write(path) as write:
        write(b"new")


@pytest.mark.parametrize("name", WRITERS)
def test_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path: Path, name: str) -> None:
    (target := tmp_path / "target").write_text("mine")
    (folder := tmp_path / "folder").mkdir()
    for other in (target, tmp_path / "new"):
        (folder / PARTIAL[name]).symlink_to(other)
        WRITERS[name](folder)
    assert target.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "target"]
    assert [path.is_symlink() for path in folder.iterdir()] == [False]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_files_of_a_directory_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    from safetensors.torch import save_file

    before = os.umask(umask)
    try:
        with atomic_directory(tmp_path / "final") as folder:
            save_file({"a": torch.zeros(1)}, folder / "a.safetensors")
            (folder / "script").touch(mode=0o700)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "final").iterdir()}
    assert modes == {"a.safetensors": mode, "script": 0o700}


def test_errors_of_safetensors_and_torch_become_os_errors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(OSError, match="os error 2"), os_errors():
        save_file({"a": torch.zeros(1)}, tmp_path / "missing" / "a.safetensors")

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None: ...

    with pytest.raises(OSError, match="No space left") as caught, os_errors():
        torch.save(torch.zeros(1000), Full())
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="another"), os_errors():
        raise RuntimeError("another")


def _events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are flushed to the disk, and "renamed", in this order."""
    events: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("renamed") or replace(*paths))
    return events


def test_directory_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _events(monkeypatch)
    with atomic_directory(tmp_path / "final") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
    partial = tmp_path / "final.partial"
    expected = [str(path) for path in (partial / "inner", partial / "inner" / "file", partial)]
    assert events == [*expected, "renamed", str(tmp_path)]


def test_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _events(monkeypatch)
    write_atomically(tmp_path / "a.json", "x")
    assert events == [str(tmp_path / "a.json.partial"), "renamed", str(tmp_path)]
    assert (tmp_path / "a.json").read_text() == "x"


def test_failed_block_does_not_replace_the_directory(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "final") as folder:
        (folder / "old").touch()
    with pytest.raises(FileNotFoundError), atomic_directory(tmp_path / "final") as folder:
        (folder / "new" / "file").touch()
    assert [path.name for path in (tmp_path / "final").iterdir()] == ["old"]
