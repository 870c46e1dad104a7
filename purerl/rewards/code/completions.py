"""The program in a completion.

It is what follows the last ``</think>``, and of this the last ``<answer>`` if there is one. If there are code fences,
it is the content of one of them: the last block with a label of the language, or else the last block without a label.
If no language is known, the label may be that of any language but a shell, because a shell's block after a program says
how to run it. A block of a shell is the program only if there is no other. One program is chosen, by the form of the
text only. Others are never tried.

A fence in a string in triple quotes is not a fence: a docstring may have an example in Markdown.

The last block is what verl (prime_code) and open-r1 take. LiveCodeBench takes the text between the first two fences in
some versions and the last two in others, and evalplus the longest run of lines that is valid Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from purerl.rewards.code.languages import find_language

__all__ = ["Block", "Program", "blocks", "find_program", "open_block"]

_SHELL = "bash"
# Not a tag in a string of the program.
_TAG = re.compile(r"""(?<!["'\w(])<answer>|(?P<close></answer>)(?!["'])""", re.IGNORECASE)
_FENCE_AFTER_TAG = re.compile(r"(<answer>)[ \t]*(?=`{3}|~{3})", re.IGNORECASE)
_TAG_AFTER_FENCE = re.compile(r"^([ \t]*(?:`{3,}|~{3,}))[ \t]*(?=</answer>)", re.MULTILINE | re.IGNORECASE)
# What a program is made of if strings matter. A string in single quotes ends with its line at the latest.
_QUOTES = re.compile(r"""#[^\n]*|\"{3}|'{3}|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?""", re.DOTALL)
_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^\n`]*)$", re.MULTILINE)


class Block(NamedTuple):
    """A block of code in Markdown: the word after its fence, its content, and whether there is a closing fence."""

    label: str
    content: str
    is_closed: bool


class Program(NamedTuple):
    """The text of a program, and its language if a fence names it."""

    text: str
    language: str | None = None


def blocks(text: str) -> Iterator[Block]:
    r"""The blocks of code in `text`, by the rules of Markdown. A block without a closing fence ends with the text.

    >>> [block.label for block in blocks("First:\n```python\nx = 1\n```\nThen:\n```\ny")]
    ['python', '']
    """
    for start, content, end in _blocks(text):
        yield _block(start, content, is_closed=end is not None)


def _blocks(text: str) -> Iterator[tuple[re.Match[str], str, re.Match[str] | None]]:
    """The opening fence, the content and the closing fence of each block."""
    fences = list(_FENCE.finditer(text))
    position = 0
    while position < len(fences):
        start = fences[position]
        closing = _closing(text, fences, position)
        end = None if closing is None else fences[closing]
        yield start, text[start.end() + 1 : end.start() if end else len(text)], end
        position = len(fences) if closing is None else closing + 1


def _closing(text: str, fences: Sequence[re.Match[str]], opening: int) -> int | None:
    """The index of the fence that closes a block: the first one outside of strings, or else the first one."""
    start, first, quote, place = fences[opening], None, "", fences[opening].end()
    for index in range(opening + 1, len(fences)):
        match = fences[index]
        quote, place = _open_quote(text, place, match.start(), quote), match.end()
        if match["fence"].startswith(start["fence"]) and not match["info"].strip():
            if not quote:
                return index
            first = index if first is None else first
    return first


def _open_quote(text: str, start: int, end: int, quote: str = "") -> str:
    """The triple quote of the string that is open at `end`; "" if none is. `quote` is the one at `start`."""
    while True:
        if quote:
            place = text.find(quote, start, end)
            if place < 0:
                return quote
            start, quote = place + len(quote), ""
        match = _QUOTES.search(text, start, end)
        if match is None:
            return ""
        start, quote = match.end(), match[0] if match[0] in ('"""', "'''") else ""


def _is_program(text: str) -> bool:
    """Whether there are fences in `text`, all of them in strings in triple quotes that end."""
    quote, place = "", 0
    for match in _FENCE.finditer(text):
        quote, place = _open_quote(text, place, match.start(), quote), match.end()
        if not quote:
            return False
    return place > 0 and not _open_quote(text, place, len(text), quote)


def _block(start: re.Match[str], content: str, *, is_closed: bool) -> Block:
    words = start["info"].strip("{} \t").split()
    indent = len(start["indent"])
    lines = content.splitlines(keepends=True)
    dedented = "".join(line[min(indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines)
    return Block(words[0].lstrip(".").lower() if words else "", dedented, is_closed)


def find_program(completion: str, language: str | None, *, is_open: bool = False) -> Program | None:
    r"""The program in `completion`; None if there is none.

    language  its language, if it is known; otherwise the label of the fence may name it
    is_open   whether the prompt ends in a block of code, which the completion continues

    >>> find_program("<think>Try `1`.</think>\nSo:\n```python\nprint(2)\n```", None)
    Program(text='print(2)\n', language='python')
    >>> find_program("    return x + 1", "python")
    Program(text='    return x + 1', language=None)
    """
    answer = _answer(completion)
    if is_open:
        answer = _until_fence(answer)
    found = [block for block in blocks(answer) if block.is_closed or block.content.strip()]
    if not found or _is_program(answer):
        return Program(answer) if answer.strip() else None
    programs = [Program(block.content, find_language(block.label)) for block in found]
    plain = [program for program, block in zip(programs, found, strict=True) if not block.label]
    if language is not None:
        ranked = [[program for program in programs if program.language == language], plain]
    else:
        known = [program for program in programs if program.language is not None]
        ranked = [[program for program in known if program.language != _SHELL], plain, known]
    chosen = next((kind[-1] for kind in ranked if kind), None)
    return chosen if chosen and chosen.text.strip() else None


def _answer(completion: str) -> str:
    """What follows the thinking, and of this the last answer. Thinking that does not end is followed by nothing."""
    _, end, answer = completion.rpartition("</think>")
    return _tagged(answer) if end or "<think>" not in completion else ""


def _tagged(text: str) -> str:
    """The content of the last `<answer>` outside of blocks; `text` itself without any, or if it is empty."""
    if _TAG.search(text) is None:
        return text
    divided = _TAG_AFTER_FENCE.sub(r"\1\n", _FENCE_AFTER_TAG.sub(r"\1\n", text))
    start = end = 0
    for tag in _tags(divided):
        start, end = (start, tag.start()) if tag["close"] else (tag.end(), len(divided))
    return divided[start:end] if divided[start:end].strip() else text


def _tags(text: str) -> Iterator[re.Match[str]]:
    """The tags outside of blocks."""
    place = 0
    for start, _, end in _blocks(text):
        yield from _TAG.finditer(text, place, start.start())
        place = len(text) if end is None else end.end()
    yield from _TAG.finditer(text, place)


def _until_fence(text: str) -> str:
    """The text before the first closing fence."""
    fence = next((match for match in _FENCE.finditer(text) if not match["info"].strip()), None)
    return text[: fence.start()] if fence else text


def open_block(text: str) -> Block | None:
    """The block at the end of `text` that is not closed."""
    return next((block for block in blocks(text) if not block.is_closed), None)
