"""Computers on which something is missing that a sandbox needs: calls of the kernel fail, by a seccomp filter."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

from purerl.sandbox.supervisor import seccomp
from purerl.sandbox.supervisor.seccomp import ALLOW, refuse
from purerl.sandbox.supervisor.syscalls import prctl

__all__ = ["deny", "run_where"]

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_IS_X86 = os.uname().machine == "x86_64"
_CLONE, _PRCTL, _MOUNT, _LANDLOCK = (56, 157, 165, 444) if _IS_X86 else (220, 167, 40, 444)
_MISSING = {
    "user namespaces": (_CLONE, 0, 0x10000000, errno.EPERM),
    "network namespaces": (_CLONE, 0, 0x40000000, errno.EINVAL),
    "mounts": (_MOUNT, 3, 2**32 - 1, errno.EACCES),
    "landlock": (_LANDLOCK, 2, 2**32 - 1, errno.EOPNOTSUPP),
    "seccomp": (_PRCTL, 0, 22, errno.EINVAL),
}
"""(call, index of an argument, bits of which one must be set in it, error)."""


def deny(name: str) -> None:
    """Let calls of this process fail, from now on."""
    call, argument, bits, error = _MISSING[name]
    test = (_EQUAL, 0, 1, bits) if name == "seccomp" else (_ANY_BIT, 0, 1, bits)
    steps = [
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 3, call),
        (_LOAD, 0, 0, 16 + 8 * argument),
        test,
        (_RETURN, 0, 0, refuse(error)),
        (_RETURN, 0, 0, ALLOW),
    ]
    prctl(38, 1)
    seccomp.install(seccomp.encode(steps))


def run_where(missing: str, code: str) -> str:
    """The output of `code` on a computer without `missing`."""
    prelude = f"from tests.sandbox.hosts import deny\ndeny({missing!r})\n"
    process = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout
