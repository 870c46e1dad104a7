"""The tests of attacks, again as an ordinary user, if they run as root: other permissions, and no cgroups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .as_user import USER, unreadable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="these tests run as an ordinary user already"),
    pytest.mark.skipif(bool(unreadable()), reason=f"other users may not read {', '.join(unreadable())}"),
]

_FILES = ("test_attacks_on_isolation.py", "test_attacks_on_limits.py", "test_running.py")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user, below the one for temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="purerl-user-"))
    os.chown(folder, USER, USER)
    yield folder
    shutil.rmtree(folder)


def test_attacks_fail_as_an_ordinary_user_too(home: Path) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        *(str(here / name) for name in _FILES),
    ]
    process = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.as_user", *command],
        cwd=here.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-5000:]
    passed = re.search(r"(\d+) passed", process.stdout)
    assert passed is not None
    assert int(passed[1]) > 60
