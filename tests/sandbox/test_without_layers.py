"""`layers = "none"`: a program has the permissions of the user, but limits hold, and nothing is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from purerl.sandbox import Pool, Result, SandboxSettings, run_python

from .attacks import ACCOUNTINGS, LIMITS, marked, marker, processes_with, wait_until_gone


@pytest.fixture(scope="module", params=ACCOUNTINGS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(SandboxSettings(layers="none", accounting=request.param), limits=LIMITS) as opened:
        yield opened


def _run(pool: Pool, source: str, **changes: object) -> Result:
    word = marker()
    result = pool.run_python(marked(source, word), limits=evolve(LIMITS, **changes))
    assert processes_with(word) == []
    return result


def test_program_sees_the_host(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    source = f"print(open({str(tmp_path / 'a')!r}).read(), os.getpid() > 2, os.getuid(), os.listdir(), os.getcwd())"
    text, is_outside, user, files, folder = _run(pool, source).stdout_text.split()
    assert (text, is_outside, int(user), files) == ("text", "True", os.getuid(), "['program.py']")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("source", "changes", "status"),
    [
        ("signal.pause()", {"timeout": 0.5}, "timeout"),
        ("while True: pass", {"cpu_time": 0.5}, "timeout"),
        ("kept = b'x' * 2**30", {}, "memory"),
        ("while True: print('x' * 100)", {}, "output"),
        ("for _ in range(21): os.fork() or signal.pause()\nsignal.pause()", {"max_processes": 20}, "processes"),
        ("if os.fork() == 0:\n    os.setsid()\n    os.fork()\n    signal.pause()", {}, "ok"),
    ],
)
def test_limits_hold_and_nothing_is_left(source: str, changes: dict, status: str, pool: Pool) -> None:
    assert _run(pool, source, **changes).status == status


def test_everything_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    word = marker()
    code = f"""
from purerl.sandbox import Limits, SandboxSettings, run_python
settings = SandboxSettings(layers="none", limits=Limits(timeout=1000))
program = '''
import os, time
open({str(tmp_path / "folder")!r}, "w").write(os.getcwd())
os.posix_spawn("/bin/sleep", [{word!r}, "1000"], {{}}, setsid=True)
open({str(tmp_path / "started")!r}, "w").close()
time.sleep(1000)
'''
run_python(program, settings=settings)
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "started").exists():
        assert owner.poll() is None
        time.sleep(0.01)
    owner.kill()
    owner.wait()
    wait_until_gone(word)
    folder = Path((tmp_path / "folder").read_text())
    os.utime(folder.parent, (1.0, 1.0))  # a new one may be used, and not yet locked
    run_python("", settings=SandboxSettings(layers="none"))
    assert not folder.parent.exists()
