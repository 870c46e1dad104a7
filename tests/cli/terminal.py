"""Run a command in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

__all__ = ["purerl_in_terminal", "run_in_terminal"]

_TIMEOUT = 90.0
_FORKING = """
import json, os, runpy, sys
import purerl.loop.train, purerl.recipes.addition, purerl_cli.main, rich.console, torch, typer.rich_utils
for arguments in json.loads(sys.argv[1]):
    process = os.fork()
    if process == 0:
        sys.argv = ["purerl", *arguments]
        runpy.run_module("purerl_cli", run_name="__main__")
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.write(1, b"\\0%d\\0" % status)
"""


def purerl_in_terminal(commands: Sequence[Sequence[str]]) -> list[tuple[str, int]]:
    """The output of ``purerl`` in a pseudo-terminal for each of these arguments, and its exit status.

    Each is a process that is forked from one that has imported torch. The output ends with a null character, which no
    other output may have.
    """
    output, status = run_in_terminal([sys.executable, "-c", _FORKING, json.dumps(commands)])
    assert status == 0, output[-3000:]
    results = [(text, int(number)) for text, number in re.findall(r"([^\0]*)\0(-?\d+)\0", output)]
    assert len(results) == len(commands), output
    return results


def run_in_terminal(
    command: Sequence[str], on_output: Callable[[subprocess.Popen, str], None] = lambda process, output: None
) -> tuple[str, int]:
    """Run `command` in a process with a pseudo-terminal. Return everything that it prints, and its exit status.

    `on_output` is called with the process and all output so far, whenever there is new output.
    """
    own_end, process_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=process_end, stdout=process_end, stderr=process_end, env=environment)
    os.close(process_end)
    output, deadline = b"", time.monotonic() + _TIMEOUT
    try:
        while True:
            text = output.decode(errors="replace").replace("\r\n", "\n")
            assert time.monotonic() < deadline, f"the command did not exit; its last output: {text[-3000:]!r}"
            if not select.select([own_end], [], [], 0.5)[0]:
                continue
            with contextlib.suppress(OSError):  # the process has closed its end
                if new_output := os.read(own_end, 65536):
                    output += new_output
                    on_output(process, output.decode(errors="replace"))
                    continue
            return text, process.wait(timeout=10)
    finally:
        process.kill()
        os.close(own_end)
