"""Becoming an ordinary user for a command, from root: `python -m tests.sandbox.as_user COMMAND ...`; and for tests.

The interpreter and this repository may lie below a directory that only root may enter, such as /root. In a mount
namespace of its own, this process replaces such a directory by one with only these parts of it, for everybody.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

__all__ = ["NEEDED", "ONLY_FOR_ROOT", "USER", "closed_directories", "run_tests", "unreadable"]

USER = 54321
"""A user id that has no processes and owns no files."""
NEEDED = sorted(
    {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), str(Path(__file__).parents[2])}
)
"""The directories of the interpreter, and this repository."""

_NEW_MOUNTS, _BIND, _REC, _PRIVATE = 0x20000, 4096, 16384, 1 << 18


def _is_open(path: Path, bits: int) -> bool:
    return path.stat().st_mode & bits == bits


def closed_directories() -> list[str]:
    """The topmost directories above those that are needed which not everybody may enter."""
    found = []
    for needed in NEEDED:
        parents = [*reversed(Path(needed).parents)]
        found += [str(parent) for parent in parents if not _is_open(parent, stat.S_IXOTH)][:1]
    return sorted(set(found))


def unreadable() -> list[str]:
    """The needed directories that not everybody may read."""
    return [needed for needed in NEEDED if not _is_open(Path(needed), stat.S_IROTH | stat.S_IXOTH)]


ONLY_FOR_ROOT = [
    pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already"),
    pytest.mark.skipif(bool(unreadable()), reason=f"other users may not read {', '.join(unreadable())}"),
]
"""Marks of tests that call `run_tests`."""


def run_tests(*files: Path) -> int:
    """Run the tests in `files` as an ordinary user with a home of its own. Returns how many have passed; none fails."""
    with tempfile.TemporaryDirectory(prefix="purerl-user-") as home:
        os.chown(home, USER, USER)
        environment = {**os.environ, "HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
        pytest_command = [sys.executable, "-m", "pytest", "-q", "-n0", "--noconftest", "-p", "no:cacheprovider"]
        process = subprocess.run(
            [sys.executable, "-m", "tests.sandbox.as_user", *pytest_command, *map(str, files)],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-5000:]
    passed = re.search(r"(\d+) passed", process.stdout)
    return int(passed[1]) if passed else 0


def _checked(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
    _checked(libc.unshare(_NEW_MOUNTS))
    _checked(libc.mount(None, b"/", None, _REC | _PRIVATE, None))
    for closed in closed_directories():
        parts = [needed for needed in NEEDED if needed.startswith(f"{closed}/")]
        opened = {part: os.open(part, os.O_PATH) for part in parts}
        _checked(libc.mount(b"tmpfs", closed.encode(), b"tmpfs", 0, b"mode=755"))
        for part, descriptor in opened.items():
            Path(part).mkdir(parents=True, exist_ok=True)
            _checked(libc.mount(f"/proc/self/fd/{descriptor}".encode(), part.encode(), None, _BIND | _REC, None))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
