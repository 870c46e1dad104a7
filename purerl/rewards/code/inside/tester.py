"""The process of the tests. It never executes a completion.

It lives over many checks, and forks a process for each, in which `purerl.rewards.code.inside.checks` runs. A call of
the completion's function is a message to the owner of the session and ends the turn; the next turn brings the answer.
Each turn writes one message to stdout: "call ..." or "done ...", see there, or "died" if the process of the check has
ended without a report.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from purerl.rewards.code.inside.checks import run
from purerl.rewards.code.inside.messages import Channel, write_all

__all__ = ["begin", "resume"]

_STDOUT, _MAX_DESCRIPTORS = 1, 4096


class _Check:
    def __init__(self, spec: str):
        (source, their_target), (their_source, target) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run(spec, Channel(their_source, their_target))
        os.close(their_source)
        os.close(their_target)
        self.channel = Channel(source, target)

    def end(self, *, is_alone: bool) -> None:
        """End the process and those that it has started, and remove what they have written."""
        with suppress(ProcessLookupError):
            os.kill(-1 if is_alone else -self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for descriptor in self.channel:
            os.close(descriptor)
        for path in Path().iterdir():
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink()


def _run(spec: str, channel: Channel) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        first, second = sorted(channel)
        for start, end in ((3, first), (first + 1, second), (second + 1, _MAX_DESCRIPTORS)):
            os.closerange(start, end)
        run(json.loads(spec), channel)
    finally:
        os._exit(0)


_current: list[_Check] = []


def begin(spec: str, *, is_alone: bool) -> None:
    """Start a check, as `purerl.rewards.code.inside.checks` defines it. The one before is ended.

    is_alone  whether this process sees only processes of its own sandbox, so that all others can be ended
    """
    while _current:
        _current.pop().end(is_alone=is_alone)
    _current.append(_Check(spec))
    _report()


def resume(answer: bytes) -> None:
    """Answer the call of the check, with a message of `purerl.rewards.code.inside.candidate`, or "dead REASON"."""
    with suppress(OSError):
        _current[-1].channel.send(answer)
    _report()


def _report() -> None:
    write_all(_STDOUT, _current[-1].channel.receive() or b"died")
