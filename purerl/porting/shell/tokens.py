"""Words and operators of a shell script, with their lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from purerl.errors import ConfigError

__all__ = ["Token", "end_of_part", "here_documents", "tokenize"]


class Token(NamedTuple):
    """A word as it is written, with its quotes, or an operator; a new line is an operator, too."""

    text: str
    line: int
    is_word: bool


_OPERATORS = (";;&", "<<<", "<<-", "&>>", ";;", ";&", "&&", "||", "|&", "<<", "<&", ">&", "&>", ">>", ">|", "<>")
_OPERATORS = (*_OPERATORS, "|", "&", ";", "(", ")", "<", ">", "\n")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_HEREDOC = re.compile(r"[ \t]*(['\"]?)([\w.-]+)\1")


def tokenize(text: str) -> list[Token]:
    """The words and operators of `text`, without comments and here-documents.

    A list in parentheses after ``NAME=`` is a part of this word, and ``((...))`` is one operator.

    Raises: ConfigError for a quote or a parenthesis without an end, with its line.

    >>> [token.text for token in tokenize("a=(1 2); echo 'x y' # text")]
    ['a=(1 2)', ';', 'echo', "'x y'"]
    """
    return [*_tokens(text.replace("\r\n", "\n"), [])]


def here_documents(text: str) -> list[str]:
    r"""The texts of the here-documents in `text`. Raises: ConfigError as `tokenize`.

    >>> here_documents("bash <<END\necho a\nEND\n")
    ['echo a\n']
    """
    documents: list[str] = []
    for _ in _tokens(text.replace("\r\n", "\n"), documents):
        pass
    return documents


def _tokens(text: str, documents: list[str]) -> Iterator[Token]:
    """The tokens; adds the here-documents."""
    i, line, delimiters, is_start = 0, 1, [], True
    while i < len(text):
        start = i
        if text.startswith("\\\n", i):
            i += 2
        elif text[i] in " \t":
            i += 1
        elif text[i] == "#":
            i = _end_of_line(text, i)
        elif text.startswith("((", i) and is_start:
            i = _balanced(text, i + 1, "()")
            yield Token(text[start:i], line, is_word=False)
        elif (operator := _operator(text, i)) is None:
            i = _end_of_word(text, i)
            is_start = False
            if not (text[start:i].isdigit() and text[i : i + 1] in ("<", ">")):  # of `2>&1`
                yield Token(text[start:i], line, is_word=True)
        elif operator in ("<<", "<<-") and (match := _HEREDOC.match(text, i + len(operator))):
            delimiters.append(match[2])
            i = match.end()
        else:
            i, is_start = i + len(operator), operator not in ("<", ">", "<<<")
            yield Token(operator, line, is_word=False)
            if operator == "\n" and delimiters:
                i, delimiters = _after_heredocs(text, i, delimiters, documents), []
        line += text.count("\n", start, i)


def _operator(text: str, i: int) -> str | None:
    return next((operator for operator in _OPERATORS if text.startswith(operator, i)), None)


def _end_of_line(text: str, i: int) -> int:
    end = text.find("\n", i)
    return len(text) if end < 0 else end


def _after_heredocs(text: str, i: int, delimiters: list[str], documents: list[str]) -> int:
    for delimiter in delimiters:
        match = re.compile(rf"^[ \t]*{re.escape(delimiter)}$", re.MULTILINE).search(text, i)
        documents.append(text[i:] if match is None else text[i : match.start()])
        i = len(text) if match is None else min(match.end() + 1, len(text))
    return i


def _end_of_word(text: str, start: int) -> int:
    i = start
    while i < len(text) and text[i] not in " \t" and (_operator(text, i) is None or _is_array(text, start, i)):
        i = _balanced(text, i, "()") if _is_array(text, start, i) else end_of_part(text, i)
    return i


def _is_array(text: str, start: int, i: int) -> bool:
    return text[i] == "(" and _ARRAY.match(text[start:i]) is not None


def end_of_part(text: str, i: int) -> int:
    """The index after the character, the quote or the expansion that begins at `i`. Raises ConfigError without an end.

    >>> end_of_part('"a b" c', 0), end_of_part("${X:-$(pwd)}/y", 0)
    (5, 12)
    """
    if text[i] == "\\":
        return min(i + 2, len(text))
    if text[i] == "'":
        return _closing(text, i, "'")
    if text.startswith("$'", i):
        return _closing(text, i + 1, "'", escapes=True)
    if text[i] in '"`':
        return _end_of_quote(text, i)
    if text.startswith("$(", i):
        return _balanced(text, i + 1, "()")
    return _balanced(text, i + 1, "{}") if text.startswith("${", i) else i + 1


def _closing(text: str, i: int, quote: str, *, escapes: bool = False) -> int:
    end = i + 1
    while end < len(text) and text[end] != quote:
        end += 2 if escapes and text[end] == "\\" else 1
    if end >= len(text):
        raise _without_end(text, i)
    return end + 1


def _end_of_quote(text: str, i: int) -> int:
    end, inner = i + 1, "\\$`" if text[i] == '"' else "\\"
    while end < len(text) and text[end] != text[i]:
        end = end_of_part(text, end) if text[end] in inner and not text.startswith("$'", end) else end + 1
    if end >= len(text):
        raise _without_end(text, i)
    return end + 1


def _balanced(text: str, i: int, pair: str) -> int:
    """The index after the parenthesis that closes the one at `i`."""
    depth, end = 0, i
    while end < len(text):
        is_comment = text[end] == "#" and text[end - 1] in " \t\n" and pair == "()"
        if text[end] in pair:
            depth += 1 if text[end] == pair[0] else -1
            if depth == 0:
                return end + 1
            end += 1
        else:
            end = _end_of_line(text, end) if is_comment else end_of_part(text, end)
    raise _without_end(text, i)


def _without_end(text: str, i: int) -> ConfigError:
    line = text.count("\n", 0, i) + 1
    return ConfigError(f"line {line}", got=f"{text[i]} without its end", need="a shell script, as bash reads it")
