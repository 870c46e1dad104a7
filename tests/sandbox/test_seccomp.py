"""The seccomp filter, evaluated for both architectures by an interpreter of its instructions."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from purerl.sandbox.supervisor.seccomp import ALLOW, KILL, MACHINES, Instruction, build, refuse
from purerl.sandbox.supervisor.syscall_table import ALLOWED, REFUSED, numbers_of

EPERM, ENOSYS = refuse(errno.EPERM), refuse(errno.ENOSYS)


def _evaluate(steps: list[Instruction], number: int, arguments: tuple[int, ...] = (), architecture: int = 0) -> int:
    """The kernel's decision about a call: struct seccomp_data has the call, the architecture and six arguments."""
    words = {0: number, 4: architecture}
    for k, argument in enumerate(arguments):
        words |= {16 + 8 * k: argument & 0xFFFFFFFF, 20 + 8 * k: argument >> 32}
    position, value = 0, 0
    while True:
        code, if_true, if_false, constant = steps[position]
        position += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            value = words.get(constant, 0)
        elif code == 0x54:
            value &= constant
        else:
            test = {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant, 0x45: value & constant}
            position += if_true if test[code] else if_false


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_call_has_the_decision_of_its_table(machine: str) -> None:
    steps, architecture = build(machine, shared_memory=True), MACHINES[machine]
    allowed, refused = numbers_of(ALLOWED, machine), numbers_of(REFUSED, machine)
    assert not set(allowed.values()) & set(refused.values())
    by_arguments = {"socket", "socketpair"}
    decisions = {**dict.fromkeys(allowed.values(), ALLOW), **dict.fromkeys(refused.values(), EPERM)}
    decisions |= {allowed[name]: refuse(errno.EAFNOSUPPORT) for name in by_arguments}
    for number in [*range(1000), 2**30, 2**30 + 1, 2**31, 2**32 - 1]:
        assert _evaluate(steps, number, (0,) * 6, architecture) == decisions.get(number, ENOSYS), number


def test_a_call_of_another_architecture_kills(machine: str) -> None:
    other = next(value for name, value in MACHINES.items() if name != machine)
    for architecture in (other, 0x40000003, 0):
        assert _evaluate(build(machine, shared_memory=True), 0, (), architecture) == KILL


@pytest.mark.parametrize(
    ("name", "arguments", "decision"),
    [
        ("clone", (17,), ALLOW),
        ("clone", (0x3D0F00,), ALLOW),  # a thread
        *(("clone", (17 | 1 << bit,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("ioctl", (0, 0x541C), EPERM),
        ("ioctl", (0, 0x100005412), EPERM),  # the kernel reads the lower half
        *(("socket", (family, 1, 0), ALLOW) for family in (1, 2, 10)),
        ("socket", (1 << 32 | 1, 1, 0), ALLOW),
        ("socket", (2, 1, 6), ALLOW),
        ("socket", (2, 3, 1), refuse(errno.EPROTONOSUPPORT)),
        *(("socket", (family, 1, 0), refuse(errno.EAFNOSUPPORT)) for family in (0, 16, 17, 38, 40)),
    ],
)
def test_decisions_by_arguments(name: str, arguments: tuple[int, ...], decision: int, machine: str) -> None:
    number = numbers_of(ALLOWED, machine)[name]
    assert _evaluate(build(machine, shared_memory=True), number, arguments, MACHINES[machine]) == decision


@pytest.mark.parametrize(
    ("flags", "is_shared"), [(0x22, False), (0x02, False), (0x01, False), (0x21, True), (0x23, True)]
)
def test_shared_anonymous_memory_is_refused_if_nothing_counts_it(flags: int, is_shared: bool, machine: str) -> None:
    number = numbers_of(ALLOWED, machine)["mmap"]
    decisions = [
        _evaluate(build(machine, shared_memory=shared), number, (0, 4096, 3, flags, 0, 0), MACHINES[machine])
        for shared in (True, False)
    ]
    assert decisions == [ALLOW, refuse(errno.ENOMEM) if is_shared else ALLOW]


_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not _HEADERS[machine].exists():
        pytest.skip(f"{_HEADERS[machine]} is not installed")
    text = re.sub(r"\b__NR3264_fstatat\b", "__NR3264_newfstatat", _HEADERS[machine].read_text())
    pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)
    known = {name: int(number) for name, number in pairs if int(number) < 1000}  # those above belong to old machines
    ours = {**numbers_of(ALLOWED, machine), **numbers_of(REFUSED, machine)}
    assert {name: known.get(name, number) for name, number in ours.items()} == ours
    missing = {name for name in {**numbers_of(ALLOWED, "x86_64"), **numbers_of(REFUSED, "x86_64")} if name not in ours}
    assert not missing & known.keys()
