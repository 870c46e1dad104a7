"""The seccomp filter: which system calls a program in the sandbox may make, as a program for the kernel's BPF machine.

The filter is a list of instructions (code, jump if true, jump if false, constant), which `build` makes from the tables
of system calls, a pure function of the architecture. It first checks the architecture: a call by another one, such as
32-bit calls on x86_64, has other numbers and kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Iterator
from functools import cache

from purerl.sandbox.supervisor.syscall_table import ALLOWED, REFUSED, numbers_of
from purerl.sandbox.supervisor.syscalls import prctl

__all__ = ["ALLOW", "KILL", "MACHINES", "Instruction", "build", "encode", "filter_of", "install", "refuse"]

Instruction = tuple[int, int, int, int]

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Architectures for which there is a filter, and their numbers in the kernel (AUDIT_ARCH)."""

ALLOW, KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _AT_LEAST, _ANY_BIT = 0x15, 0x25, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32_CALLS = 0x40000000  # x86_64 only: calls of 32-bit pointers from here on

_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: writing into the input of a terminal
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6; not AF_VSOCK, which no network namespace contains
_PROTOCOLS = (0, 6, 17)  # the default, TCP, UDP
_MAP_TYPE_AND_ANONYMOUS, _SHARED_ANONYMOUS = 0x2F, (0x21, 0x23)

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def refuse(number: int) -> int:
    """The result of a filter with which a call fails with this errno."""
    return _ERRNO | number


def build(machine: str, *, shared_memory: bool) -> list[Instruction]:
    """The filter for `machine`, "x86_64" or "aarch64".

    shared_memory  whether a program may share anonymous memory; without cgroups nothing can count it
    """
    allowed, refused = numbers_of(ALLOWED, machine), numbers_of(REFUSED, machine)
    by_arguments = {
        "clone": _clone(),
        "ioctl": [_argument(1), *_in(_TERMINAL_INPUT, refuse(errno.EPERM)), (_RETURN, 0, 0, ALLOW)],
        "socket": _socket(),
        "socketpair": _socket(),
        **({} if shared_memory else {"mmap": _mmap()}),
    }
    blocks = {allowed.pop(name): block for name, block in by_arguments.items()}
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, MACHINES[machine]),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_test_range(_X32_CALLS, 2**32 - 1, refuse(errno.ENOSYS)),
        *(step for number, block in blocks.items() for step in ((_EQUAL, 0, len(block), number), *block)),
        *(step for first, last in _ranges(allowed.values()) for step in _test_range(first, last, ALLOW)),
        *(step for first, last in _ranges(refused.values()) for step in _test_range(first, last, refuse(errno.EPERM))),
        (_RETURN, 0, 0, refuse(errno.ENOSYS)),
    ]


@cache
def filter_of(machine: str, *, shared_memory: bool) -> bytes:
    """The filter of `build`, as the kernel reads it."""
    return encode(build(machine, shared_memory=shared_memory))


def encode(steps: Iterable[Instruction]) -> bytes:
    """Instructions as the kernel reads them."""
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def install(code: bytes) -> None:
    """Apply a filter to this process for good. It must have PR_SET_NO_NEW_PRIVS.

    Raises: OSError if the kernel has no seccomp.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    program = ctypes.create_string_buffer(header, len(header))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program))


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers, as (first, last).

    >>> list(_ranges([3, 1, 2, 7]))
    [(1, 3), (7, 7)]
    """
    numbers = sorted(numbers)
    starts = [k for k in numbers if k - 1 not in numbers]
    return zip(starts, [k for k in numbers if k + 1 not in numbers], strict=True)


def _test_range(first: int, last: int, result: int) -> list[Instruction]:
    return [(_AT_LEAST, 0, 2, first), (_GREATER, 1, 0, last), (_RETURN, 0, 0, result)]


def _argument(index: int) -> Instruction:
    """Load the lower half of an argument, on these little-endian machines: the kernel reads no more of flags."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _in(values: tuple[int, ...], result: int) -> list[Instruction]:
    """Return `result` if the loaded value is one of `values`."""
    return [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, result))]


def _clone() -> list[Instruction]:
    refused = (_RETURN, 0, 0, refuse(errno.EPERM))
    return [_argument(0), (_ANY_BIT, 0, 1, _NAMESPACES), refused, (_RETURN, 0, 0, ALLOW)]


def _socket() -> list[Instruction]:
    other_family = (_RETURN, 0, 0, refuse(errno.EAFNOSUPPORT))
    known = [(_EQUAL, len(_FAMILIES) - k, 0, family) for k, family in enumerate(_FAMILIES)]
    protocols = [_argument(2), *_in(_PROTOCOLS, ALLOW), (_RETURN, 0, 0, refuse(errno.EPROTONOSUPPORT))]
    return [_argument(0), *known, other_family, *protocols]


def _mmap() -> list[Instruction]:
    masked = (_AND, 0, 0, _MAP_TYPE_AND_ANONYMOUS)
    return [_argument(3), masked, *_in(_SHARED_ANONYMOUS, refuse(errno.ENOMEM)), (_RETURN, 0, 0, ALLOW)]
