"""A second Python process that computes fingerprints of pickled algorithms."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys

__all__ = ["fingerprint_in_other_process"]

# A process that imports torch takes seconds to start. One process therefore serves all calls, until its stdin closes.
_SERVER = """
import pickle, sys
from purerl.algos.algebra import fingerprint
while packed := sys.stdin.buffer.readline():
    try:
        answer = fingerprint(pickle.loads(bytes.fromhex(packed.decode())))
    except Exception as error:
        answer = repr(error)
    print(answer, flush=True)
"""


def fingerprint_in_other_process(packed: bytes) -> str:
    """The fingerprint of a pickled algorithm, computed in another process; the repr of the error if that fails."""
    process = _process()
    process.stdin.write(packed.hex() + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@functools.cache
def _process() -> subprocess.Popen:
    # With another hash seed, anything that depends on the iteration order of a set of strings differs.
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
    pipe = subprocess.PIPE
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, env=environment, text=True
    )
    atexit.register(process.communicate)
    return process
