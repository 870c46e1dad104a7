"""Expansion of the words of a shell script: quotes, variables, arrays and arithmetic.

Programs are not run. A value that needs one, and a variable that is not set, is an unknown part of a word: a mark in
its text, which `Words.unknown_in` finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from purerl.porting.outcomes import Unknown
from purerl.porting.shell.arithmetic import evaluate
from purerl.porting.shell.parameters import Value, changed, first, item_of
from purerl.porting.shell.tokens import end_of_part, tokenize

__all__ = ["MARK", "Words"]

MARK = re.compile("\ue000(\\d+)\ue001")
"""An unknown part of a text."""

_SIMPLE = re.compile(r"\$([A-Za-z_]\w*|[0-9@*#?$!-])")
_PARAMETER = re.compile(r"([#!]?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[(.*?)\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(.*?)\])?(\+?)=(.*)", re.DOTALL)
_NAMED_ITEM = re.compile(r"\[(.*?)\]=(.*)", re.DOTALL)


class Words:
    """The variables of a script, and the expansion of its words.

    file         its name, for the places of unknown values
    environment  variables that the script finds
    arguments    those of the script, or of its function that runs
    line         of the word that is expanded
    lenient      whether a variable that is not set is empty, as in tests
    """

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        self.file, self.environment = file, environment
        self.variables: dict[str, Value] = {}
        self.arguments: list[str] = []
        self.line, self.lenient = 1, False
        self._unknown: list[Unknown] = []

    # --- unknown parts ---------------------------------------------------------------------------------------------

    def unknown(self, source: str) -> str:
        """A mark for the source text `source` at the current line."""
        self._unknown.append(Unknown(source, f"{self.file}:{self.line}"))
        return f"\ue000{len(self._unknown) - 1}\ue001"

    def unknown_in(self, text: str) -> Unknown | None:
        """`text` as it is written, with the place of its first unknown part; None if all of it is known."""
        match = MARK.search(text)
        return None if match is None else Unknown(self.restored(text), self._unknown[int(match[1])].place)

    def restored(self, text: str) -> str:
        """`text` with the source of unknown parts in place of their marks."""
        return MARK.sub(lambda match: self._unknown[int(match[1])].text, text)

    def known_part(self, text: str) -> str:
        """`text` without its unknown parts, and without the signs that have joined them."""
        return MARK.sub("", text).strip(" -_.")

    # --- words -----------------------------------------------------------------------------------------------------

    def fields(self, raw: str) -> list[str]:
        """The words that the word `raw` of the script becomes: none for an empty variable, several for an array."""
        pieces = _Pieces()
        self._expand(self._with_home(raw), pieces)
        return pieces.finished()

    def text(self, raw: str) -> str:
        """The word `raw` as the value of a variable, which is not split."""
        return self._joined(self._with_home(raw), in_quotes=False)

    def assign(self, raw: str) -> None:
        """Run the assignment `raw`, such as ``a=b``, ``a+=b``, ``a[1]=b`` or ``a=(b c)``."""
        name, index, plus, value = _ASSIGNMENT.findall(raw)[0]
        old = self.variables.get(name, "")
        if index:
            self.variables[name] = {**_by_index(old), self.text(index): self.text(value)}
        elif value[:1] == "(":
            new = self._array(value[1:-1])
            self.variables[name] = _added(old, new) if plus else new
        else:
            self.variables[name] = f"{first(old)}{self.text(value)}" if plus else self.text(value)

    def _array(self, inner: str) -> Value:
        words = [token.text for token in tokenize(inner) if token.is_word]
        named = [match for word in words if (match := _NAMED_ITEM.fullmatch(word))]
        if named and len(named) == len(words):
            return {self.text(match[1]): self.text(match[2]) for match in named}
        return [field for word in words for field in self.fields(word)]

    def _with_home(self, raw: str) -> str:
        return self.environment.get("HOME", "~") + raw[1:] if raw == "~" or raw.startswith("~/") else raw

    def _joined(self, raw: str, *, in_quotes: bool = True) -> str:
        pieces = _Pieces()
        self._expand(raw, pieces, in_quotes=in_quotes, splits=False)
        return " ".join(pieces.finished())

    def _expand(self, raw: str, pieces: _Pieces, *, in_quotes: bool = False, splits: bool = True) -> None:
        for part in _parts(raw, in_quotes=in_quotes):
            if part[0] in "$`" and len(part) > 1 and not part.startswith("$'"):
                value = self._value(part, in_quotes=in_quotes)
                values = [value] if isinstance(value, str) else value
                pieces.add_all(values, splits=splits and not in_quotes)
            elif part[0] == "\\":
                is_escape = not in_quotes or part[1:] in ("$", "`", '"', "\\", "\n")
                pieces.add(part[1:].replace("\n", "") if is_escape else part)
            elif in_quotes or len(part) == 1:
                pieces.add(part)
            elif part[0] == '"':
                pieces.add("")
                self._expand(part[1:-1], pieces, in_quotes=True, splits=splits)
            else:
                pieces.add(part[2:-1].encode().decode("unicode_escape") if part[0] == "$" else part[1:-1])

    # --- values ----------------------------------------------------------------------------------------------------

    def lookup(self, name: str) -> Value | None:
        """The value of the variable `name`; None if it is not set."""
        if name.isdigit():
            return self.file if name == "0" else next(iter(self.arguments[int(name) - 1 :]), None)
        special: Mapping[str, Value] = {"@": self.arguments, "*": self.arguments, "#": str(len(self.arguments))}
        return special.get(name, self.variables.get(name, self.environment.get(name)))

    def arithmetic(self, expression: str, source: str) -> str:
        """The value of integer arithmetic, as text."""
        try:
            return str(evaluate(self._joined(expression), self._number))
        except ValueError:
            return self.unknown(source)

    def _number(self, name: str) -> str:
        value = self.lookup(name)
        if value is None or MARK.search(first(value)):
            raise ValueError(name)
        return first(value)

    def _value(self, part: str, *, in_quotes: bool) -> str | list[str]:
        """The value of an expansion: ``$X``, ``${X...}``, ``$((...))`` or ``$(...)``."""
        if match := _SIMPLE.fullmatch(part):
            value = self.lookup(match[1])
            if value is None:
                return self._unset(part)
            return [*self.arguments] if match[1] in ("@", "*") else first(value)
        if part.startswith("$((") and part.endswith("))"):
            return self.arithmetic(part[3:-2], part)
        if part.startswith("${"):
            return self._parameter(part, in_quotes=in_quotes)
        return str(Path.cwd()) if part in ("$(pwd)", "`pwd`") else self.unknown(part)

    def _unset(self, source: str) -> str:
        return "" if self.lenient else self.unknown(source)

    def _parameter(self, source: str, *, in_quotes: bool) -> str | list[str]:
        match = _PARAMETER.fullmatch(source[2:-1])
        if match is None or match[1] == "!":
            return self.unknown(source)
        sign, name, _, index, rest = match.groups()
        value = self._item(self.lookup(name), index, is_list=name in ("@", "*"))
        if sign == "#":
            return str(len(value or "")) if value is None or not MARK.search("".join(value)) else self.unknown(source)
        if default := _DEFAULT.fullmatch(rest):
            text = default[2].replace('"', "") if in_quotes else default[2]
            return self._with_default(name, value, default[1], text, source, in_quotes=in_quotes)
        if value is None:
            return [] if index in ("@", "*") else self._unset(source)
        if not rest:
            return value
        result = changed(value, rest, self._joined, lambda text: self.arithmetic(text, source))
        return self.unknown(source) if result is None else result

    def _item(self, value: Value | None, index: str | None, *, is_list: bool) -> str | list[str] | None:
        if value is None or is_list:
            return [*self.arguments] if is_list else None
        return first(value) if index is None else item_of(value, index, self._joined)

    def _with_default(
        self, name: str, value: str | list[str] | None, operator: str, default: str, source: str, *, in_quotes: bool
    ) -> str | list[str]:
        is_set = value is not None and (bool(value) or ":" not in operator)
        if operator[-1] == "+":
            return self._joined(default, in_quotes=in_quotes) if is_set else ""
        if is_set and value is not None:
            return value
        if operator[-1] == "?":
            return self._unset(source)
        result = self._joined(default, in_quotes=True) if in_quotes else self.text(default)
        if operator[-1] == "=":
            self.variables[name] = result
        return result


class _Pieces:
    """Words under construction."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._current: str | None = None

    def add(self, text: str) -> None:
        """Continue the current word."""
        self._current = (self._current or "") + text

    def add_all(self, values: Iterable[str], *, splits: bool) -> None:
        """Continue with several words; `splits`: each is split at its spaces."""
        values = [*values]
        if not values and self._current == "":
            self._current = None  # "$@" without arguments
        for number, value in enumerate(values):
            if number:
                self._end()
            self._split(value) if splits else self.add(value)

    def _split(self, value: str) -> None:
        for piece in re.findall(r"\s+|\S+", value):
            self._end() if piece.isspace() else self.add(piece)

    def finished(self) -> list[str]:
        """All words."""
        self._end()
        return self._words

    def _end(self) -> None:
        if self._current is not None:
            self._words.append(self._current)
        self._current = None


def _parts(text: str, *, in_quotes: bool) -> Iterator[str]:
    """Characters, quotes and expansions, in order; between double quotes there are no single ones."""
    i = 0
    while i < len(text):
        if match := _SIMPLE.match(text, i):
            end = match.end()
        else:
            end = i + 1 if in_quotes and (text[i] in "'\"" or text.startswith("$'", i)) else end_of_part(text, i)
        yield text[i:end]
        i = end


def _by_index(value: Value) -> dict[str, str]:
    items = [value] if isinstance(value, str) and value else value
    return items if isinstance(items, dict) else {str(index): item for index, item in enumerate(items)}


def _added(old: Value, new: Value) -> Value:
    """The array `old` with the items of `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **new}
    lists = [[each] if isinstance(each, str) and each else [*each] for each in (old, new)]
    return [*lists[0], *lists[1]]
