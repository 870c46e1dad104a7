"""Overrides of hydra, ``key=value``, and their values."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from purerl.errors import ConfigError

__all__ = ["Override", "is_override", "parse_override", "parse_value"]


class Override(NamedTuple):
    """An override: its dotted key, its value, and whether it deletes the key (``~key``)."""

    key: str
    value: Any
    deletes: bool = False


_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.@/:-]*)(?:=(.*))?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_WORDS = {"null": None, "none": None, "true": True, "false": False, "inf": float("inf"), "nan": float("nan")}
_WORDS |= {"-inf": float("-inf")}


def is_override(word: str) -> bool:
    """Whether `word` of a command is an override.

    >>> [*map(is_override, ("a.b=1", "++a=", "~a.b", "--config-name=x", "a.py"))]
    [True, True, True, False, False]
    """
    match = _OVERRIDE.fullmatch(word)
    return match is not None and (match[3] is not None or match[1] == "~")


def parse_override(word: str) -> Override:
    """The override `word`. The last part of a key of a list, ``a.0``, is a part of the key.

    >>> parse_override("+data.files=['a','b']")
    Override(key='data.files', value=['a', 'b'], deletes=False)
    """
    match = _OVERRIDE.fullmatch(word)
    if match is None or (match[3] is None and match[1] != "~"):
        raise ConfigError(word, need="an override of hydra, key=value")
    return Override(match[2].partition("@")[0], parse_value(match[3] or ""), match[1] == "~")


def parse_value(text: str) -> Any:
    """The value that hydra reads in `text`: lists, tables, quoted texts, numbers, true, false and null.

    Everything else is text.

    >>> parse_value("{a: [1, 1e-6], 'b c': null}"), parse_value("/data/x.parquet"), parse_value("${a.b}")
    ({'a': [1, 1e-06], 'b c': None}, '/data/x.parquet', '${a.b}')
    """
    text = text.strip()
    reader = _Reader(text)
    try:
        value = reader.value(end="")
    except IndexError:  # no list and no table of hydra
        return text
    return value if reader.is_at_end() else text


class _Reader:
    """A reading of values, from left to right. Raises: IndexError for a list or a text without its end."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def is_at_end(self) -> bool:
        """Whether only spaces remain."""
        return not self.text[self.position :].strip()

    def skip(self) -> str:
        """The next character that is no space. Raises IndexError at the end."""
        while self.text[self.position].isspace():
            self.position += 1
        return self.text[self.position]

    def value(self, end: str) -> Any:
        """The next value, which ends before one of the characters `end`."""
        if self.is_at_end():
            return ""
        start = self.skip()
        if start == "[":
            return self.items("]", lambda: self.value(",]"))
        if start == "{":
            return dict(self.items("}", self.pair))
        return self.quoted() if start in "'\"" else _scalar(self.plain(end))

    def items(self, end: str, read: Any) -> list[Any]:
        """The items up to `end`, each read by `read`."""
        self.position += 1
        items = []
        while self.skip() != end:
            items.append(read())
            if self.skip() == ",":
                self.position += 1
        self.position += 1
        return items

    def pair(self) -> tuple[Any, Any]:
        """A key and a value of a table."""
        key = self.value(":,}")
        if self.skip() != ":":
            raise IndexError
        self.position += 1
        return key, self.value(",}")

    def quoted(self) -> str:
        """A text in quotes."""
        quote, start = self.text[self.position], self.position + 1
        end = start
        while self.text[end] != quote:
            end += 2 if self.text[end] == "\\" else 1
        self.position = end + 1
        return self.text[start:end].replace(f"\\{quote}", quote).replace("\\\\", "\\")

    def plain(self, end: str) -> str:
        """A text without quotes; an interpolation in it is a part of it."""
        start, depth = self.position, 0
        while self.position < len(self.text) and (depth or self.text[self.position] not in end):
            depth += (self.text[self.position] in "{(") - (self.text[self.position] in "})")
            self.position += 1
        return self.text[start : self.position].strip()


def _scalar(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if match := _NUMBER.fullmatch(text):
        return float(text.replace("_", "")) if match[2] or match[3] or "." in text else int(text.replace("_", ""))
    return text
