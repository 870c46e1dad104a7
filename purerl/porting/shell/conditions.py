"""Conditions of a shell script: ``[ ... ]`` and ``[[ ... ]]``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["is_true"]

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_OF_FILES: dict[str, Callable[[Path], bool]] = {"-f": Path.is_file, "-d": Path.is_dir, "-e": Path.exists}
_OF_FILES |= {"-s": Path.is_file, "-r": Path.exists, "-x": Path.exists}


def is_true(words: Sequence[str]) -> bool | None:
    """Whether the condition that `words` express holds; None if it is not known.

    >>> is_true(["-z", ""]), is_true(["fsdp", "==", "meg*"]), is_true(["2", "-gt", "1", "&&", "!", "-n", ""])
    (True, False, True)
    """
    for joint, is_decided in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in words:
            at = [*words].index(joint)
            results = [is_true(words[:at]), is_true(words[at + 1 :])]
            return is_decided if is_decided in results else None if None in results else not is_decided
    if words and words[0] == "!":
        inner = is_true(words[1:])
        return None if inner is None else not inner
    if any("\ue000" in word for word in words):
        return None
    return _simple([*words])


def _simple(words: list[str]) -> bool | None:
    match words:
        case []:
            return False
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [test, file] if test in _OF_FILES:
            return _OF_FILES[test](Path(file))
        case [a, test, b]:
            return _comparison(a, test, b)
    return None


def _comparison(a: str, test: str, b: str) -> bool | None:
    if test in ("=", "==", "!="):
        return fnmatchcase(a, b) != (test == "!=")
    if test in _NUMBERS and re.fullmatch(r"-?\d+", a) and re.fullmatch(r"-?\d+", b):
        return _NUMBERS[test](int(a), int(b))
    try:
        return re.search(b, a) is not None if test == "=~" else None
    except re.error:
        return None
