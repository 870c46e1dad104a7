"""Watching a running program: its input and output, its time, and what its processes use."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from io import RawIOBase
from typing import Any, NamedTuple

from purerl.sandbox.messages import TURN, TURN_ANSWER, Bounds, receive
from purerl.sandbox.supervisor.cgroups import Cgroup
from purerl.sandbox.supervisor.sampling import Sampler

__all__ = ["Channels", "Monitor"]

_INTERVAL_WITH_CGROUP, _INTERVAL = 0.05, 0.01  # seconds between two measurements
_CHUNK, _MAX_CHUNKS = 2**16, 32


class Channels(NamedTuple):
    """The supervisor's ends: of the owner's socket, of process 1, of the pipes of the program, of a session."""

    owner: socket.socket
    report: socket.socket
    stdin: RawIOBase
    stdout: RawIOBase
    stderr: RawIOBase
    turns: socket.socket | None


class Monitor:
    """Watches a sandbox.

    output   what the program has written to stdout and stderr, as far as it is kept
    has_overflowed  whether it has written more than is kept
    message  the last message of process 1
    code     the last answer of a session
    memory   the largest memory that was seen, in bytes
    """

    def __init__(self, channels: Channels, bounds: Bounds, cgroup: Cgroup | None, sampler: Sampler | None):
        self._channels, self._bounds = channels, bounds
        self._cgroup, self._sampler = cgroup, sampler
        self._interval = _INTERVAL if cgroup is None else _INTERVAL_WITH_CGROUP
        self._poll = select.poll()
        self._poll.register(channels.owner, select.POLLIN | select.POLLRDHUP)
        self._poll.register(channels.report, select.POLLIN)
        if channels.turns is not None:
            self._poll.register(channels.turns, select.POLLIN)
        self._outputs = {end.fileno(): bytearray() for end in (channels.stdout, channels.stderr)}
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        self._open = set(self._outputs)
        self._waiting: dict[int, tuple[RawIOBase | socket.socket, memoryview]] = {}
        self.message: Mapping[str, Any] = {}
        self.code, self.memory, self._cpu_seconds = 0, 0, 0.0
        self._token, self._answered = b"", b""
        self.has_overflowed, self._has_ended = False, False

    @property
    def output(self) -> tuple[bytes, bytes]:
        stdout, stderr = self._outputs.values()
        return bytes(stdout), bytes(stderr)

    def forget_output(self) -> None:
        """Start the output of the next turn."""
        for kept in self._outputs.values():
            kept.clear()
        self.has_overflowed = False

    def feed_turn(self, turns: socket.socket, source: bytes) -> None:
        """Start the next turn on the socket `turns`. Its answer has a token that nobody could know before.

        The program has the socket too. What it writes there in an earlier turn is no answer to this one.
        """
        self._token = os.urandom(8)
        self.feed(turns, TURN.pack(len(source), self._token) + source)

    def feed(self, end: RawIOBase | socket.socket, data: bytes) -> None:
        """Write `data` as fast as the program reads it; a pipe is closed after it."""
        os.set_blocking(end.fileno(), False)
        self._waiting[end.fileno()] = end, memoryview(data)
        self._poll.register(end, select.POLLOUT | (0 if isinstance(end, RawIOBase) else select.POLLIN))

    def wait_for_pause(self) -> None:
        """Wait until all processes have been stopped, before the next turn starts.

        Otherwise they could be stopped and continued in the middle of it. A process that is created just then would
        stay stopped: the kernel lets it inherit the first signal, but not the second one.
        """
        message = None
        with suppress(OSError):
            message = receive(self._channels.report)
        if message is None or "is_paused" not in message.header:
            self.message, self._has_ended = (message.header if message else {}), True

    def wait(self, seconds: float, cpu_seconds: float, max_output: int, *, is_ending: bool = False) -> str:
        """Wait until something ends the run, or a turn of it.

        "exit": process 1 has sent a message; "turn": the session has answered; "forged": the program has written to the
        socket of the session; "closed": the owner has closed its end; otherwise what was exceeded: "timeout", "memory",
        "processes", "output". If the turn `is_ending`, because it was interrupted, more output is read and not kept.
        """
        if self._has_ended:
            return "exit"
        now = time.monotonic()
        end, measured, cpu_end = now + seconds, now, self._cpu_seconds + cpu_seconds
        while True:
            ready = self._poll.poll(max(0.0, min(end, measured + self._interval) - now) * 1000)
            for descriptor, event in ready:
                outcome = self._handle(descriptor, event, max_output)
                if outcome == "exit" and self._cgroup is None:
                    return self._measure(cpu_end) or outcome  # what the program has left may be too much
                if outcome and not (is_ending and outcome == "output"):
                    return outcome
            now = time.monotonic()
            if now >= measured + self._interval:
                if exceeded := self._measure(cpu_end):
                    return exceeded
                measured = now
            if now >= end:
                return "timeout"

    def _handle(self, descriptor: int, event: int, max_output: int) -> str | None:
        owner, report, turns = self._channels.owner, self._channels.report, self._channels.turns
        if descriptor == owner.fileno():
            return "closed"
        if descriptor == report.fileno():
            message = receive(report)
            self.message = message.header if message else {}
            return "exit"
        if descriptor in self._outputs:
            self._read(descriptor, max_output)
            return "output" if self.has_overflowed else None
        if descriptor in self._waiting:
            self._write(descriptor)
        if turns is not None and descriptor == turns.fileno() and event & (select.POLLIN | select.POLLHUP):
            return self._answer(turns)
        return None

    def _answer(self, turns: socket.socket) -> str | None:
        data = b""
        with suppress(OSError):
            data = turns.recv(_CHUNK)
        if not data:
            self._poll.unregister(turns)  # the program is ending; process 1 says how
            return None
        self._answered += data
        if len(self._answered) < TURN_ANSWER.size:
            return None
        token, self.code = TURN_ANSWER.unpack_from(self._answered)
        is_right = token == self._token and len(self._answered) == TURN_ANSWER.size
        self._answered = b""
        return "turn" if is_right else "forged"

    def _write(self, descriptor: int) -> None:
        end, data = self._waiting[descriptor]
        try:
            data = data[os.write(descriptor, data[: 2**20]) :] if data else data
        except BlockingIOError:
            return
        except OSError:  # the program has closed its end
            data = data[:0]
        self._waiting[descriptor] = end, data
        if data:
            return
        del self._waiting[descriptor]
        if isinstance(end, RawIOBase):
            self._poll.unregister(descriptor)
            end.close()
        else:
            self._poll.modify(descriptor, select.POLLIN)

    def _read(self, descriptor: int, max_output: int) -> int:
        """Read output that is there, and keep as much of it as is allowed. Returns the number of bytes."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._poll.unregister(descriptor)
            self._open.discard(descriptor)
        room = max_output - sum(map(len, self._outputs.values()))
        self._outputs[descriptor] += data[:room]
        self.has_overflowed = self.has_overflowed or len(data) > room
        return len(data)

    def drain(self, max_output: int) -> None:
        """Read the output that has been written already."""
        for descriptor in sorted(self._open):
            for _ in range(_MAX_CHUNKS):  # more than a pipe holds: other processes may still write into it
                if not self._read(descriptor, max_output):
                    break

    def _measure(self, cpu_end: float) -> str | None:
        if exceeded := self.exceeded():
            return exceeded
        if self._sampler is not None:
            usage = self._sampler.usage(with_memory=self._cgroup is None)
            self._cpu_seconds = max(self._cpu_seconds, usage.cpu_seconds)
            if self._cgroup is None and (exceeded := self._check_memory(self._sampler, usage.memory)):
                return exceeded
            if usage.processes > self._bounds.processes:
                return "processes"
        return "timeout" if self._cpu_seconds > cpu_end else None

    def _check_memory(self, sampler: Sampler, rough: int) -> str | None:
        """Compare memory with its limit; count pages that processes share once only if it matters."""
        memory = rough if rough <= self._bounds.memory else sampler.exact_memory()
        self.memory = max(self.memory, memory)
        return "memory" if memory > self._bounds.memory else None

    def exceeded(self) -> str | None:
        """The exceeded limit of the control group, "memory" or "processes"; also after the end of the program."""
        if self._cgroup is None:
            return None
        self.memory = max(self.memory, self._cgroup.memory())
        if self._cgroup.has_exceeded_memory():
            return "memory"
        return "processes" if self._cgroup.has_exceeded_processes() else None
