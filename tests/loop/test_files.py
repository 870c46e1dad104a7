"""What the disk refuses is told; what is no refusal, or is about another place, is left alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from purerl.backends.hf.checkpoint import os_errors
from purerl.errors import RunDirectoryError
from purerl.files import folder_at_once, refusals_told


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),  # as from writing: no file is named
        PermissionError(errno.EACCES, "Permission denied", "/runs/a/metrics.jsonl"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "/runs"),
        OSError(errno.EROFS, "Read-only file system", "/runs/a/x.partial", None, "/runs/a/x"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/runs/a"),  # as from making it in /proc
        FileExistsError(errno.EEXIST, "File exists", "/runs"),
        OSError(errno.ENAMETOOLONG, "File name too long", "/runs/a"),
    ],
)
def test_a_refusal_is_the_run_directorys(error: OSError) -> None:
    with pytest.raises(RunDirectoryError) as caught, refusals_told(Path("/runs/a")):
        raise error
    assert str(caught.value).startswith(f"run directory '/runs/a' cannot be written\n  got:  {error}\n  need: a dir")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/runs/a/data.json"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "/runs/a/metrics.jsonl"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        PermissionError(errno.EACCES, "Permission denied", "/data/rows.parquet"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    ],
)
def test_all_else_is_left_as_it_is(error: OSError) -> None:
    with pytest.raises(OSError, match=error.strerror) as caught, refusals_told(Path("/runs/a")):
        raise error
    assert caught.value is error


def test_what_safetensors_and_torch_make_a_text_of_is_an_error_of_the_disk(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(OSError, match="os error 2"), os_errors():
        save_file({"a": torch.zeros(1)}, tmp_path / "nowhere" / "a.safetensors")

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None: ...

    with pytest.raises(OSError, match="No space left") as caught, os_errors():
        torch.save(torch.zeros(1000), Full())
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="another"), os_errors():
        raise RuntimeError("another")


def _path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def test_a_folder_is_on_the_disk_with_all_that_is_in_it_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(_path_of(descriptor)))
    replaced = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: synced.append("named") or replaced(*paths))
    with folder_at_once(tmp_path / "final") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
    partial = tmp_path / "final.partial"
    expected = [str(path) for path in (partial / "inner", partial / "inner" / "file", partial)]
    assert synced == [*expected, "named", str(tmp_path)]
