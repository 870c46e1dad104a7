"""Another process, which tells whether an algorithm survives the way there."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys

__all__ = ["fingerprint_elsewhere"]

# Starting a process that imports torch takes seconds. So there is one, and it answers until its input ends.
_ANSWER = """
import pickle, sys
from purerl.algos.algebra import fingerprint
while packed := sys.stdin.buffer.readline():
    try:
        answer = fingerprint(pickle.loads(bytes.fromhex(packed.decode())))
    except Exception as error:
        answer = repr(error)
    print(answer, flush=True)
"""


def fingerprint_elsewhere(packed: bytes) -> str:
    """The fingerprint of a pickled algorithm in another process, or the error that unpickling it there gives."""
    process = _process()
    process.stdin.write(packed.hex() + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@functools.cache
def _process() -> subprocess.Popen:
    # Another seed than ours for the hashes of strings: what follows the order of a set differs there.
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
    pipe = subprocess.PIPE
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", _ANSWER], stdin=pipe, stdout=pipe, env=environment, text=True
    )
    atexit.register(process.communicate)
    return process
