"""A second Python process that computes fingerprints of pickled algorithms."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from threading import Timer

__all__ = ["fingerprint_in_other_process"]

_ANSWER_TIMEOUT = 120.0
"""Seconds after which the process is killed if it has not answered. Its start is part of the first answer."""

_EXIT_TIMEOUT = 10.0
"""Seconds after which the process is killed if it has not exited."""

# A process that imports torch takes seconds to start. One process therefore serves all calls, until its stdin closes.
_SERVER = """
import json, pickle, sys
from purerl.algos.algebra import fingerprint
while packed := sys.stdin.buffer.readline():
    try:
        sys.path[:], algorithm = json.loads(packed)
        answer = fingerprint(pickle.loads(bytes.fromhex(algorithm)))
    except Exception as error:
        answer = repr(error)
    print(answer, flush=True)
"""


def fingerprint_in_other_process(packed: bytes) -> str:
    """The fingerprint of a pickled algorithm, computed in another process; the repr of the error if that fails."""
    process = _process()
    timer = Timer(_ANSWER_TIMEOUT, process.kill)
    timer.start()
    try:
        # A directory may have been added to sys.path since the process has started, such as that of a user's file.
        process.stdin.write(json.dumps((sys.path, packed.hex())) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError as error:  # the process has ended
        answer = repr(error)
    finally:
        timer.cancel()
    if answer.endswith("\n"):
        return answer.strip()
    _process.cache_clear()
    return answer or repr(EOFError(f"the process has ended, or was killed after {_ANSWER_TIMEOUT:g} seconds"))


@functools.cache
def _process() -> subprocess.Popen:
    # With another hash seed, anything that depends on the iteration order of a set of strings differs.
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
    pipe = subprocess.PIPE
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, env=environment, text=True
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen) -> None:
    try:
        process.communicate(timeout=_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
