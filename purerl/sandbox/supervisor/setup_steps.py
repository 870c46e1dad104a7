"""Failures of the processes that build a sandbox: in which step, which is the name of a layer, and why."""

from __future__ import annotations

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


def _describe(error: BaseException) -> str:
    """The text of an error: with its path if it has one, or else with the place in the code that raised it."""
    text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    if trace is None or (isinstance(error, OSError) and error.filename is not None):
        return text
    code = trace.tb_frame.f_code
    return f"{text} (in {code.co_name}, {os.path.basename(code.co_filename)}, line {trace.tb_lineno})"


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say in which step an error occurs."""
    try:
        yield
    except OSError as error:
        raise _StepError(name, error) from error


@contextmanager
def reporting(connection: socket.socket) -> Iterator[None]:
    """Send an error to the supervisor, with the path or the call that failed, and end this process."""
    try:
        yield
    except _StepError as failure:
        name, error = failure.step, failure.error
    except BaseException as failure:  # noqa: BLE001 -- a forked process must not return to what its parent does
        name, error = "start", failure
    else:
        return
    number = error.errno if isinstance(error, OSError) else None
    with suppress(OSError):
        send(connection, Message({"error": {"step": name, "errno": number, "text": _describe(error)}}))
    os._exit(1)
