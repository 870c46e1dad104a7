"""The program in a completion.

It is what follows the last ``</think>``, and of this the last ``<answer>`` if there is one. If there are code fences,
it is the content of one of them: the last block with a label of the language, or else the last block without a label.
If no language is known, the label may be that of any language but a shell, because a shell's block after a program says
how to run it. A block of a shell is the program only if there is no other. Empty blocks do not count. One program is
chosen, by the form of the text only. Others are never tried.

A fence in a string in triple quotes is not a fence: a docstring may have an example in Markdown. More than Markdown
allows, a block may begin at the end of a line of prose if its label is a language, and end with a fence that text
follows on its line.

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
_ANSWER = r"""<answer(?:\s+[\w:-]+=(?:"[^"\n]*"|'[^'\n]*'|[\w.+#-]+))*\s*>"""
_TAG = re.compile(rf"""(?<!["'\w(]){_ANSWER}|(?P<close></answer>)(?!["'])""", re.IGNORECASE)
_THINK = re.compile(r"""(?<!["'])<(?P<close>/?)think>|<(?P<closed>/?)think>(?!\\n["']|["'])""")
_FENCE_AFTER_TAG = re.compile(rf"({_ANSWER})[ \t]*(?=`{{3}}|~{{3}})", re.IGNORECASE)
_TAG_AFTER_FENCE = re.compile(r"^([ \t]*(?:`{3,}|~{3,}))[ \t]*(?=</answer>)", re.MULTILINE | re.IGNORECASE)
# What a program is made of if strings matter. A string in single quotes ends with its line at the latest.
_QUOTES = re.compile(r"""#[^\n]*|\"{3}|'{3}|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?""", re.DOTALL)
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*(?P<quoted>> ?)?)(?P<prose>[^\s`~#>](?:[^\n]*?[^\n`])?(?=`))?"
    r"(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)$",
    re.MULTILINE,
)
_ONE_LINE = re.compile(r"\s*(?P<fence>`{3,})(?P<content>[^\n`]+)(?P=fence)\s*")
_BYTE_ORDER_MARK = re.compile("^\ufeff", re.MULTILINE)


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
    fences = list(_fences(text))
    position = 0
    while position < len(fences):
        start = fences[position]
        closing = _closing(text, fences, position)
        end = None if closing is None else fences[closing]
        content = text[start.end() + 1 : end.start() if end else len(text)]
        if end is None and content.rstrip().endswith(start["fence"]):  # the fence is at the end of a line of code
            content = content.rstrip().removesuffix(start["fence"])
        yield start, content, end
        position = len(fences) if closing is None else closing + 1


def _fences(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _FENCE.finditer(text) if not match["prose"] or find_language(_label(match)))


def _closing(text: str, fences: Sequence[re.Match[str]], opening: int) -> int | None:
    """The index of the fence that closes a block: the first one outside of strings, or else the first one."""
    start, first, quote, place = fences[opening], None, "", fences[opening].end()
    is_quoted = bool(start["quoted"])
    for index in range(opening + 1, len(fences)):
        match = fences[index]
        quote, place = _open_quote(text, place, match.start(), quote), match.end()
        if match["fence"].startswith(start["fence"]) and _may_close(match) and bool(match["quoted"]) == is_quoted:
            if not quote:
                return index
            first = index if first is None else first
    return first


def _may_close(fence: re.Match[str]) -> bool:
    """Whether a fence may be one that closes a block: nothing follows, or after a space a word that is no language."""
    info = fence["info"]
    return not fence["prose"] and (not info.strip() or (info[0] in " \t" and find_language(_label(fence)) is None))


def _label(fence: re.Match[str]) -> str:
    """The word after a fence, without what a style of Markdown adds: `{.python}`, `python:main.py`, `python{1,3}`."""
    words = re.split(r"[\s,:;{(\[]", fence["info"].strip("{} \t"), maxsplit=1)
    return words[0].lstrip(".").lower()


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
    for match in _fences(text):
        quote, place = _open_quote(text, place, match.start(), quote), match.end()
        if not quote:
            return False
    return place > 0 and not _open_quote(text, place, len(text), quote)


def _block(start: re.Match[str], content: str, *, is_closed: bool) -> Block:
    lines = content.splitlines(keepends=True)
    if start["quoted"]:
        lines = [re.sub(r"^[ \t]*> ?", "", line) for line in lines]
    indent = len(start["indent"].partition(">")[0])
    dedented = "".join(line[min(indent, len(line) - len(line.lstrip(" \t"))) :] for line in lines)
    return Block(_label(start), dedented, is_closed)


def find_program(completion: str, language: str | None, *, is_open: bool = False) -> Program | None:
    r"""The program in `completion`; None if there is none.

    language  its language, if it is known; otherwise the label of the fence may name it
    is_open   whether the prompt ends in a block of code, which the completion continues

    >>> find_program("<think>Try `1`.</think>\nSo:\n```python\nprint(2)\n```", None)
    Program(text='print(2)\n', language='python')
    >>> find_program("    return x + 1", "python")
    Program(text='    return x + 1', language=None)
    """
    answer = _answer(_BYTE_ORDER_MARK.sub("", completion))
    if is_open and (fence := next(filter(_may_close, _fences(answer)), None)):
        answer = answer[: fence.start()]
    found = [block for block in blocks(answer) if block.is_closed or block.content.strip()]
    if not found or _is_program(answer):
        one_line = _ONE_LINE.fullmatch(answer)
        text = one_line["content"] if one_line else answer
        return Program(text) if text.strip() else None
    found = [block for block in found if block.content.strip()]
    programs = [Program(block.content, find_language(block.label)) for block in found]
    plain = [program for program, block in zip(programs, found, strict=True) if not block.label]
    if language is not None:
        ranked = [[program for program in programs if program.language == language], plain]
    else:
        known = [program for program in programs if program.language is not None]
        ranked = [[program for program in known if program.language != _SHELL], plain, known]
    return next((kind[-1] for kind in ranked if kind), None)


def _answer(completion: str) -> str:
    """The text after the thinking, and of this the last answer; empty if the thinking does not end."""
    tags = [*_THINK.finditer(completion)]
    ends = [tag.end() for tag in tags if tag["close"] or tag["closed"]]
    return _tagged(completion[ends[-1] if ends else 0 :]) if ends or not tags else ""


def _tagged(text: str) -> str:
    """The content of the last `<answer>` outside of blocks; `text` itself without any, or if it is empty."""
    if _TAG.search(text) is None:
        return text
    divided = _TAG_AFTER_FENCE.sub(r"\1\n", _FENCE_AFTER_TAG.sub(r"\1\n", text))
    start, end = 0, len(divided)
    for tag in _tags(divided):
        if not tag["close"]:
            start, end = tag.end(), len(divided)
        elif end == len(divided):  # the first one, if answers are nested
            end = tag.start()
    return divided[start:end] if divided[start:end].strip() else text


def _tags(text: str) -> Iterator[re.Match[str]]:
    place = 0
    for start, _, end in _blocks(text):
        yield from _TAG.finditer(text, place, start.start())
        place = len(text) if end is None else end.end()
    yield from _TAG.finditer(text, place)


def open_block(text: str) -> Block | None:
    """The block at the end of `text` that is not closed."""
    return next((block for block in blocks(text) if not block.is_closed), None)
