"""The machine is sound, and what is wrong with it otherwise is said by one test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import faults

PLUGIN = """
import tests.machine
tests.machine.faults = lambda: ["/dev/null is a link and no device"]
"""


def test_the_machine_is_sound() -> None:
    assert faults() == []


def test_faults_say_what_to_do(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    assert faults(str(path)) == [
        f"{path} cannot be used (No such file or directory): create it by `mknod -m 666 {path} c 1 3`"
    ]
    path.touch()
    assert faults(str(path)) == [
        f"{path} is a file and no device: replace it by `rm {path} && mknod -m 666 {path} c 1 3`"
    ]
    link.symlink_to(os.devnull)
    assert faults(str(link))[0].startswith(f"{link} is a link and no device")


@pytest.mark.slow
def test_on_a_machine_that_is_not_sound_one_test_says_so_and_the_others_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken_machine.py").write_text(PLUGIN)
    tests = ["tests/test_machine.py::test_the_machine_is_sound", "tests/system/test_files.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-rfs", "-p", "no:cacheprovider", "-p", "broken_machine", *tests]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    assert re.search(r"\b1 failed, \d+ skipped in", output), output
    assert "FAILED tests/test_machine.py::test_the_machine_is_sound" in output
    assert "see tests/test_machine.py: /dev/null is a link and no device" in output


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1])
def test_tests_do_not_inherit_ignored_or_blocked_signals(number: signal.Signals) -> None:
    assert signal.getsignal(number) is signal.SIG_DFL
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
