"""Answers in words, and letters of choices."""

from __future__ import annotations

import re

from purerl.rewards.answers.nodes import Node

__all__ = ["as_text", "choice", "content_of_choice", "from_words", "is_same_word", "is_sentence", "plain_words"]

_PHRASES = {
    Node("set", ("empty",)): (
        "none|no solution|no solutions|no real solution|no real solutions|empty set|no such number"
    ),
    Node("set", ("R",)): "all real numbers|all reals|all real|real numbers|any real number",
    Node("infinity"): "infinity|infinite|infinitely many",
    Node("text", ("undefined",)): "undefined|does not exist|dne|not defined",
}
_NODES = {phrase: node for node, phrases in _PHRASES.items() for phrase in phrases.split("|")}
_TEXT_COMMAND = re.compile(r"\\(?:text|math|operatorname|mbox)(?:bf|it|rm|sf|normal)?\s*\{([^{}]*)\}")
_PROSE = re.compile(r"[^\W_](?:[^\W_]|[\s.':()/&-])*")
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_CHOICE = re.compile(
    r"(?:(?i:option|choice)\s+)?(?:\(\s*([A-Z]|[a-z])\s*\)|([A-Z])\s*[).:](?=\s|$)|([A-Z])$)\s*(.*)", re.DOTALL
)
_LABEL = re.compile(
    r"""\\(?:text|math)(?:bf|it|rm|sf|normal)?\s*\{\s*
    (?: (?:\(\s*([A-Z])\s*\)|([A-Z])\s*[).:])\s*\}(?!\s*[_^+*/=<>|])\s*
        | ([A-Z])\s*\}\s+(?=-?\d|\\[dt]?frac|\\sqrt) ) (.*)""",
    re.DOTALL | re.VERBOSE,
)
"""The letter of a choice in a command for words, after which any formula may follow."""
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|equals)\b", re.IGNORECASE)
_NO_LETTER = "0123456789-+.$[{|<>"
"""First characters of answers that start with no letter of a choice."""
_MAX_WORDS = 10  # in an answer that is no sentence
_ANOTHER = re.compile(r"\(\s*[A-Z]\s*\)|\b(?:or|and)\b|(?:^|[\s,;/&])[A-Z](?:$|[).:,;])", re.IGNORECASE)
_OPERATION = re.compile(r"\s*(?:[-+*/^_=<>!|]|\\(?:cdot|times|cup|le|ge))")


def plain_words(text: str) -> str:
    r"""A text without the commands of LaTeX for words.

    >>> plain_words(r"\textbf{(A)}\text{ 12}")
    '(A) 12'
    """
    while (shorter := _TEXT_COMMAND.sub(r"\1", text)) != text:
        text = shorter
    return " ".join(text.split())


def from_words(text: str) -> Node:
    """The node of words: what a phrase such as "no solution" stands for, or the words in lower case without an article.

    A single letter stays as it is, because it may be a variable.
    """
    words = _ARTICLE.sub("", " ".join(text.strip(" .").split()))
    words = words if len(words) == 1 else words.lower()
    return _NODES.get(words, Node("text", (words,)))


def is_same_word(first: str, second: str) -> bool:
    """Whether two words are equal. The case of a single letter matters."""
    return first == second or (len(first) > 1 and first.lower() == second.lower())


def as_text(text: str) -> Node | None:
    r"""The node of an answer that is a sentence or a name, and no formula; otherwise None.

    >>> as_text(r"\text{the } x\text{-axis}"), as_text("x + 1") is None
    (Node(op='text', args=('x-axis',)), True)
    """
    words = plain_words(text)
    is_prose = _PROSE.fullmatch(words) and re.search(r"[^\W\d_]{2}", words) and not re.search(r"\b(?:or|and)\b", words)
    return from_words(words) if is_prose else None


def choice(text: str) -> str | None:
    r"""The letter of an answer that is a choice, such as ``(A)``, ``A.`` or ``\textbf{(A)} 12``; otherwise None.

    >>> choice("A"), choice(r"\textbf{(B)}\ 7"), choice("A + 1") is None, choice("(A) or (B)") is None
    ('A', 'B', True, True)
    """
    found = _letter_and_content(text)
    return found[0] if found else None


def content_of_choice(text: str) -> str | None:
    r"""The answer after the letter of a choice; None if there is no letter, or nothing after it.

    >>> content_of_choice(r"\textbf{(C)} 14"), content_of_choice("A + 1") is None, content_of_choice("(A)") is None
    ('14', True, True)
    """
    found = _letter_and_content(text)
    return found[1] or None if found else None


def _letter_and_content(text: str) -> tuple[str, str] | None:
    """The letter of a choice and the text after it."""
    if not text or text[0] in _NO_LETTER:
        return None
    if (label := _LABEL.match(text)) and not _ANOTHER.search(plain_words(label[4])):
        return label[1] or label[2] or label[3], label[4]
    match = _CHOICE.match(plain_words(text))
    if match is None or _ANOTHER.search(match[4]) or _OPERATION.match(match[4]):
        return None
    is_separate = match[2] or (match[1] and match[1].isupper() and match.start(4) > match.end(1) + 1)
    return (match[1] or match[2] or match[3]).upper(), match[4] if is_separate else ""


def is_sentence(text: str) -> bool:
    """Whether a text in words says more than an answer: it has a verb, or many words.

    >>> is_sentence("The answer is forty three."), is_sentence("all real numbers"), is_sentence("June 20")
    (True, False, False)
    """
    words = plain_words(text)
    return bool(_VERB.search(words)) or len(words.split()) > _MAX_WORDS
