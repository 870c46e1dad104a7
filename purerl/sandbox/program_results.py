"""The result of a program."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Result", "Status"]

Status = Literal["ok", "error", "killed", "timeout", "memory", "processes", "output"]
"""The end of a program:

    ok         with exit code 0
    error      with another exit code
    killed     by a signal that was not sent from outside, such as SIGSEGV, or by itself; a session also because it has
               written to the socket of its turns
    timeout    it exceeded `Limits.timeout` or `Limits.cpu_time`
    memory     it exceeded `Limits.max_memory`
    processes  it exceeded `Limits.max_processes`
    output     it exceeded `Limits.max_output`
"""


class Result(NamedTuple):
    """The result of a program.

    status     how it ended, see `Status`
    exit_code  the exit code; minus the number of a signal, with "killed"; None if it was ended from outside
    stdout     what it has written to stdout, as bytes, at most as much as allowed
    stderr     likewise
    seconds    duration from the start of the program to its end
    memory     the largest memory that was measured, in bytes; of a very short program, approximately
    """

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    memory: int

    @property
    def stdout_text(self) -> str:
        r"""`stdout` as UTF-8; bytes that are none become U+FFFD.

        >>> Result("ok", 0, b"caf\xc3\xa9 \xff", b"", 0.1, 0).stdout_text
        'café \ufffd'
        """
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as UTF-8, likewise."""
        return self.stderr.decode(errors="replace")
