"""Failures of the processes that build a sandbox: in which step, which is the name of a layer, and why."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from purerl.sandbox.messages import Message, send

__all__ = ["reporting", "step"]


class _StepError(Exception):
    def __init__(self, step: str, error: OSError):
        super().__init__(step, error)
        self.step, self.error = step, error


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say in which step an error occurs."""
    try:
        yield
    except OSError as error:
        raise _StepError(name, error) from error


@contextmanager
def reporting(connection: socket.socket) -> Iterator[None]:
    """Send an error to the supervisor, and end this process, which must not go on."""
    try:
        yield
    except _StepError as failure:
        name, error = failure.step, failure.error
    except BaseException as failure:  # noqa: BLE001 -- a forked process must not return to what its parent does
        name, error = "start", OSError(errno.EPROTO, repr(failure))
    else:
        return
    with suppress(OSError):
        send(connection, Message({"error": {"step": name, "errno": error.errno, "text": str(error)}}))
    os._exit(1)
