"""Errors of an engine that it has each time: another start would take a minute, and end with the same error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from purerl.backends.serving.log import errors

__all__ = ["cause_in", "harmless_in", "is_final", "is_port_in_use", "is_result", "remedy", "same_error"]

_RESULT = re.compile(
    r"EngineDeadError|died unexpectedly|connection (?:reset|closed|refused)|broken ?pipe|disconnected|Killed"
    r"|KeyboardInterrupt|SystemExit|CancelledError|TimeoutError",
    re.IGNORECASE,
)
"""Errors that say that another process has ended, or that one was ended: the cause is somewhere else."""

_FINAL = re.compile(
    r"ImportError|ModuleNotFoundError|SyntaxError|NameError|ValidationError|unrecognized arguments|invalid choice"
    r"|the following arguments are required"
)
"""Errors of a program that does not start: neither time nor another port changes them."""

_MEMORY = re.compile(r"out ?of ?memory|MemoryError|cannot allocate memory|can't allocate memory", re.IGNORECASE)
_PORT = re.compile(r"address already in use|errno 98\b|port \S* ?is (?:already )?(?:in use|used)", re.IGNORECASE)
_VARYING = re.compile(r"0x[0-9a-f]+|purerl-\w+-\w{8}|[0-9]+(?:[.:][0-9]+)*", re.IGNORECASE)


def cause_in(log: Path, harmless: Iterable[str] = ()) -> str | None:
    """The first error in `log` that explains itself, and is none of `harmless`; None if there is none."""
    with suppress(OSError):
        own = (line for line in errors(log) if line not in {*harmless} and not is_result(line))
        return next((line for line in own if not is_port_in_use(line)), None)
    return None


def harmless_in(log: Path) -> frozenset[str]:
    """The errors in the `log` of a server that is ready nevertheless."""
    with suppress(OSError):
        return frozenset(errors(log))
    return frozenset()


def same_error(first: str | None, second: str | None) -> bool:
    """Whether both are the same error, apart from numbers and names of temporary files.

    >>> same_error("ValueError: 5 tokens at 0x7f01", "ValueError: 6 tokens at 0x7f02"), same_error(None, None)
    (True, False)
    """
    return None not in (first, second) and _VARYING.sub("#", str(first)) == _VARYING.sub("#", str(second))


def is_result(text: str) -> bool:
    """Whether `text` says only that a process has ended, for a reason that is somewhere else."""
    return _RESULT.search(text) is not None


def is_final(cause: str) -> bool:
    """Whether a start that fails with `cause` fails each time."""
    return _FINAL.search(cause) is not None


def is_port_in_use(text: str) -> bool:
    """Whether an engine says in `text` that another process listens at its port."""
    return _PORT.search(text) is not None


def remedy(cause: str, log: Path | None) -> str:
    """The remedy for an error that an engine has each time."""
    memory = "lower generator.max_num_seqs, generator.max_sequence_length or server.gpu_memory_utilization; "
    see = f"see its log, {log}; " if log is not None else ""
    return f"{memory if _MEMORY.search(cause) else ''}{see}the run can be resumed from its last checkpoint"
