"""Something else in the place of the file lock of a run directory is refused, by a run and by a dry run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from purerl.errors import RunDirectoryError
from purerl.store.directory import check_directory, claim


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (lambda path: path.symlink_to(path.with_name("other")), "a link"),
    "link to itself": (lambda path: path.symlink_to(path), "a link"),
    "link to a device": (lambda path: path.symlink_to("/dev/null"), "a link"),
    "named pipe": (os.mkfifo, "a named pipe"),
    "directory": (Path.mkdir, "a directory"),
    "socket": (_socket, "no regular file"),
}


@pytest.mark.parametrize("name", PLACES)
def test_place_of_the_lock_is_checked(name: str, tmp_path: Path) -> None:
    make, got = PLACES[name]
    make(tmp_path / "lock")
    arguments = {"changes": lambda path: (), "fresh": False}
    for claim_or_check in (check_directory, claim):
        with pytest.raises(RunDirectoryError, match=f"lock'\n  got:  {got}\n  need: a file of the run"):
            claim_or_check(tmp_path, "name = 'a'\n", "0" * 64, **arguments)
