"""The exceptions of purerl.

    PurerlError
    ├── InputError (also a ValueError)   something that was given is wrong; nothing has been done yet
    │   ├── ConfigError                  a setting
    │   ├── DataError                    a data set or a record of it
    │   │   └── ImageError               an image in it
    │   └── BatchError                   a batch
    └── RunError                         something went wrong while running
        ├── RunDirectoryError            the run directory belongs to another or to a finished run
        ├── CheckpointError              a checkpoint cannot be written or read
        ├── RewardError                  reward functions failed
        ├── RolloutError                 environments, workflows or the engine failed on requests, or cannot run
        ├── EngineError                  a trainer or a generator failed, or broke its protocol
        ├── SandboxError                 a sandbox cannot be built, or failed; what a program does is a Result
        └── RunStoppedError                   the run was asked to stop, and can be resumed

A message has up to four parts: what is wrong, what we got, what we need, what to do about it. Passwords and keys that
can be recognized are hidden in it, and characters that can change a terminal are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from purerl.system.credentials import hide_credentials
from purerl.system.terminal import escape

__all__ = [
    "BatchError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EngineError",
    "ImageError",
    "InputError",
    "PurerlError",
    "RewardError",
    "RolloutError",
    "RunDirectoryError",
    "RunError",
    "RunStoppedError",
    "SandboxError",
    "listed",
    "nearest",
    "similar",
]


class PurerlError(Exception):
    """An error with a remedy: `what` is wrong, `got`, `need`, `do`.

    >>> print(PurerlError("temperature", got=-1.0, need="a number above 0", do="leave it out for 1.0"))
    temperature
      got:  -1.0
      need: a number above 0
      do:   leave it out for 1.0
    """

    def __init__(self, what: str, *, got: object = None, need: str | None = None, do: str | None = None):
        parts = {"got": None if got is None else str(got), "need": need, "do": do}
        lines = [f"  {name + ':':<6}{text}" for name, text in parts.items() if text is not None]
        super().__init__(escape(hide_credentials("\n".join([what, *lines]))))


class InputError(PurerlError, ValueError):
    """Something that was given is wrong; nothing has been done yet."""


class ConfigError(InputError):
    """A setting is unknown, of the wrong type, out of range, or without effect. `parts` are several errors in one."""

    parts: tuple[ConfigError, ...] = ()


class DataError(InputError):
    """A data set, or a record of it, cannot be used."""


class ImageError(DataError):
    """An image cannot be read or decoded, or is too large."""


class BatchError(InputError):
    """A batch does not follow the schema."""


class RunError(PurerlError, RuntimeError):
    """Something went wrong while running."""


class RunDirectoryError(RunError):
    """The run directory belongs to another run, or to a finished one."""


class CheckpointError(RunError):
    """A checkpoint cannot be written or read."""


class RewardError(RunError):
    """Reward functions failed on more rows than the run lives with, or the processes that they run in died."""


class RolloutError(RunError):
    """Too many samples are missing because environments, workflows or the engine failed on them.

    Or environments cannot be started or ended, or a workflow cannot be made or returns rows that cannot be used.
    """


class EngineError(RunError):
    """A trainer or a generator failed, or broke its protocol."""


class SandboxError(RunError):
    """A sandbox cannot be built on this computer, or it failed. Nothing is known about the program.

    layer  the layer that is missing, if one is
    """

    layer: str | None = None


class RunStoppedError(RunError):
    """The run was asked to stop, and has stopped between two steps. It can be resumed."""


def listed(names: Iterable[str], most: int = 50) -> str:
    """Names in a message: at most `most` of them, and the number of the others.

    >>> listed(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    names = [*names]
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest known one, or all of them.

    >>> nearest("clip_hi", ["clip_low", "clip_high"])
    "did you mean 'clip_high'?"
    >>> nearest("zzz", ["clip_low", "clip_high"])
    'one of: clip_high, clip_low'
    """
    names = sorted(known)
    match = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {match[0]!r}?" if match else "one of: " + listed(names, most=200)


_LAST, _WHOLE = 0.74, 0.8  # smallest similarity of two names, from 0 to 1


def similar(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` that is most similar to `name`, in its last part and as a whole; None if none is.

    >>> similar("evaluate.evry", ["evaluate.every", "checkpoint.every"])
    'evaluate.every'
    >>> similar("filter_groups.metric", ["stop_when.metric"]), similar("logger", ["lora"])
    (None, None)
    """
    last = name.rpartition(".")[2]
    found = [each for each in sorted({*known}) if _similarity(last, each.rpartition(".")[2]) >= _LAST]
    best = max(found, key=lambda each: _similarity(name, each), default=None)
    return best if best is not None and ("." not in name or _similarity(name, best) >= _WHOLE) else None


def _similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()
