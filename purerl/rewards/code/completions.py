"""The program in a completion.

It is what follows the last ``</think>``. If there are code fences, it is the content of one of them: the last block
with a label of the language, or else the last block without a label. One program is chosen, by the form of the text
only. Others are never tried.

The last block is what verl (prime_code) and open-r1 take. LiveCodeBench takes the text between the first two fences in
some versions and the last two in others, and evalplus the longest run of lines that is valid Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from purerl.rewards.code.languages import find_language

__all__ = ["Block", "Program", "blocks", "find_program", "open_block"]

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
    start = None
    for match in _FENCE.finditer(text):
        if start is None:
            start = match
        elif match["fence"].startswith(start["fence"]) and not match["info"].strip():
            yield _block(start, text[start.end() + 1 : match.start()], is_closed=True)
            start = None
    if start is not None:
        yield _block(start, text[start.end() + 1 :], is_closed=False)


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
    if not found:
        return Program(answer) if answer.strip() else None
    labels = [(find_language(block.label), block) for block in found]
    labeled = [(name, block) for name, block in labels if name is not None and language in (None, name)]
    plain = [(None, block) for block in found if not block.label]
    chosen = (labeled or plain)[-1:]
    return Program(chosen[0][1].content, chosen[0][0]) if chosen and chosen[0][1].content.strip() else None


def _answer(completion: str) -> str:
    """What follows the thinking. Thinking that does not end is followed by nothing."""
    _, end, answer = completion.rpartition("</think>")
    return answer if end or "<think>" not in completion else ""


def _until_fence(text: str) -> str:
    """The text before the first closing fence."""
    fence = next((match for match in _FENCE.finditer(text) if not match["info"].strip()), None)
    return text[: fence.start()] if fence else text


def open_block(text: str) -> Block | None:
    """The block at the end of `text` that is not closed."""
    return next((block for block in blocks(text) if not block.is_closed), None)
