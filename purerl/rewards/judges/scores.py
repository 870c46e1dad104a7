r"""The score in the answer of a judge: a line ``Score: N`` in its usual spellings, or a number such as ``[[7]]``.

    Score: 7   **Score:** 7   Final score = 7/10   Score (1-10): 7   ## Score ⏎ 7   <score>7</score>   Rating: [[7]]

1. The last line that has nothing else counts.
2. Without such a line it is a score in a sentence, such as "It is right. Score: 7". Several must be equal.
3. Without both it is a number in double brackets, likewise.

Text in quotes is not the judge's, so it does not count: what is between quotation marks or backticks, and lines after
``>``. A maximum beside the number, as in 7/10, must be that of the judge. Anything else that has digits in the place of
the number, such as 7-8, 7,5 or 1e1, is an answer without a score: another reading of it would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from purerl.rewards.endpoint.errors import UnusableAnswerError
from purerl.rewards.judges.settings import Answer

__all__ = ["find_score", "parse_number", "without_thoughts"]

_LETTER = r"[^\W_]"  # or a digit
_NUMBER = r"[-+\u2212]?(?>[0-9]++(?:\.[0-9]++)?|\.[0-9]++)"
_OPEN, _CLOSE = r"[\s*_\"'`$(\[{\u201c\u2018]*(?:\\boxed\s*\{)?", r"[*_\"'`$)\]}\u201d\u2019]*"
_OF = r"(?:/|out of\b|of\b)"
_MAXIMUM = rf"(?>[ \t]*[(\[]?{_OF}[ \t]*[*_]*(?P<maximum>{_NUMBER})(?!{_LETTER}){_CLOSE})?+"
_NO_RANGE = (
    r"(?![0-9+^]|[ \t]*%|[.:][0-9]|[ \t]*[-\u2013\u2014~/,;][ \t]*[*_]*[0-9]|[ \t]+[0-9]"
    r"|[ \t]+(?:to|or|and)[ \t]+(?:[0-9]|a\b))"
)
_VALUE = re.compile(rf"{_OPEN}(?P<word>{_NUMBER})(?!{_LETTER}){_CLOSE}{_MAXIMUM}{_NO_RANGE}", re.IGNORECASE)
_PLAIN = re.compile(rf"\s*(?P<word>{_NUMBER})\s*(?:{_OF}\s*(?P<maximum>{_NUMBER})\s*)?", re.IGNORECASE)
_DIGIT = re.compile(rf"{_OPEN}[-+\u2212]?\.?[0-9]")

_NAME = (
    rf"(?<!{_LETTER})(?<!-)(?:score|rating)(?!{_LETTER})[*_\"']*(?:[ \t]?[(\[](?P<range>[^()\[\]\n]*)[)\]])?[*_\"']*"
)
_HEAD = re.compile(rf"<(?:score|rating)>|{_NAME}[ \t]*(?:[:=\uff1a\uff1d]|(?P<heading>\n))", re.IGNORECASE)
_BEFORE = re.compile(r"[\W_]*(?:(?:final|overall|total|my|the) )*", re.IGNORECASE)
_AFTER = re.compile(r"[\W_]*(?:points?\b|stars?\b|</(?:score|rating)>)?[\W_]*", re.IGNORECASE)
_MAX_WORDS = 3  # of a line that should have a number, such as "Score: not applicable"
_BRACKETS = re.compile(r"\[\[([^\[\]\n]{1,60})\]\]")

_MAX_TEXT = 100_000  # characters at the end of an answer that are searched
_MAX_QUOTE = 1000  # characters of a quote without a fence
_QUOTED = "|".join(
    (
        r"```.*?```",
        rf"`[^`\n]{{1,{_MAX_QUOTE}}}`",
        rf"(?<!{_LETTER})\"(?=\S)(?:(?!\n\s*\n)[^\"]){{0,{_MAX_QUOTE}}}(?<=\S)\"(?!{_LETTER})",
        rf"(?<!{_LETTER})'(?=\S)[^'\n]{{0,{_MAX_QUOTE}}}(?<=\S)'(?!{_LETTER})",
        rf"\u201c(?:(?!\n\s*\n)[^\u201c\u201d]){{0,{_MAX_QUOTE}}}\u201d",
        rf"\u2018[^\u2018\u2019\n]{{0,{_MAX_QUOTE}}}\u2019(?!{_LETTER})",
        rf"\u00ab(?:(?!\n\s*\n)[^\u00ab\u00bb]){{0,{_MAX_QUOTE}}}\u00bb",
    )
)
_CLOSED_QUOTES = re.compile(_QUOTED, re.DOTALL)
_QUOTES = re.compile(rf"{_QUOTED}|```.*|^[ \t]*>[^\n]*", re.DOTALL | re.MULTILINE)
_ALL_QUOTED = re.compile(r"[\"'`\u201c\u2018]+(?:\w*\n)?([^\"'`\u201c\u201d\u2018\u2019]+)[\"'`\u201d\u2019]+")

_THINK = r"think|thinking|thought|thoughts|seed:think"
_THOUGHTS = re.compile(
    rf"(?P<end></(?:{_THINK})>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>|<\|channel\|>final<\|message\|>)"
    rf"|<(?:{_THINK})>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>|<\|channel\|>analysis<\|message\|>",
    re.IGNORECASE,
)

_Read = Callable[[], str | float]


def without_thoughts(text: str) -> str:
    """`text` after its last thoughts, such as ``</think>``. Tags in quotes are no thoughts.

    Raises: UnusableAnswerError if it ends before its thoughts end.
    """
    quotes = _spans(_CLOSED_QUOTES, text)
    tags = [tag for tag in _THOUGHTS.finditer(text) if not _is_in(quotes, tag.start(), tag.end())]
    if tags and tags[-1]["end"] is None:
        raise UnusableAnswerError(f"an answer that ends before the end of its thoughts, {tags[-1][0]}")
    return text[tags[-1].end() :] if tags else text


def parse_number(answer: Answer, word: str) -> float:
    """The number that `word` is, or the one before the maximum of the judge: 7 is "7", " 7.0 " and "7/10".

    Raises: UnusableAnswerError.
    """
    match = _PLAIN.fullmatch(word)
    if match is None:
        raise UnusableAnswerError(f"{word.strip()!r:.100} is no number")
    return _to_number(answer, match)


def find_score(answer: Answer, text: str) -> str | float:
    """The score in `text`, or the word for it if there are labels.

    Raises: UnusableAnswerError if there is none, if it cannot be read, or if there are several in sentences.
    """
    text = text[-_MAX_TEXT:]
    whole = _ALL_QUOTED.fullmatch(text.strip())
    text = whole[1] if whole else text
    quotes, value = _spans(_QUOTES, text), _pattern(answer)
    lines, mentions = list[_Read](), list[_Read]()
    for head in _HEAD.finditer(text):
        match = value.match(text, head.end())
        end = match.end() if match else head.end()
        if _is_in(quotes, head.start(), match.end("word") if match else end):
            continue
        read = _reader(answer, head, match, text)
        if _is_line(text, head, match):
            lines.append(read)
        elif not head["heading"] and (digit := match or _DIGIT.match(text, head.end())) and "\n" not in digit[0]:
            mentions.append(read)
    if lines:
        return lines[-1]()
    scores = [*dict.fromkeys(read() for read in mentions or _in_brackets(answer, text, quotes))]
    if not scores:
        raise UnusableAnswerError("no line 'Score: N'")
    if len(scores) > 1:
        shown = ", ".join(score if isinstance(score, str) else f"{score:g}" for score in scores)
        raise UnusableAnswerError(f"several scores, and no line that is only one: {shown}")
    return scores[0]


def _is_line(text: str, head: re.Match[str], match: re.Match[str] | None) -> bool:
    """Whether the lines of `head` and of its value have nothing else, or nothing that can be read."""
    start = text.rfind("\n", 0, head.start()) + 1
    if not _BEFORE.fullmatch(text, start, head.start()):
        return False
    end = text.find("\n", match.end() if match else head.end())
    end = len(text) if end < 0 else end
    if match:
        return _AFTER.fullmatch(text, match.end(), end) is not None
    return not head["heading"] and 0 < len(text[head.end() : end].split()) <= _MAX_WORDS


def _reader(answer: Answer, head: re.Match[str], match: re.Match[str] | None, text: str) -> _Read:
    def read() -> str | float:
        if match is None:
            what = text[head.end() :].strip().partition("\n")[0]
            raise UnusableAnswerError(f"{what!r:.100} is {_kind(answer)}")
        numbers = re.findall(_NUMBER, head["range"] or "")
        if numbers and answer.maximum not in {_to_float(numbers[-1]), _to_float(numbers[-1].lstrip("-"))}:
            raise UnusableAnswerError(f"{head[0].strip()!r}, and the maximum of the judge is {answer.maximum:g}")
        return match["word"].casefold() if answer.labels else _to_number(answer, match)

    return read


def _in_brackets(answer: Answer, text: str, quotes: Sequence[tuple[int, int]]) -> Iterator[_Read]:
    value = _pattern(answer)
    for found in _BRACKETS.finditer(text):
        match = value.fullmatch(text, found.start(1), found.end(1))
        if (match or _DIGIT.match(found[1])) and not _is_in(quotes, *found.span()):
            yield _in_bracket(answer, match, found[1])


def _in_bracket(answer: Answer, match: re.Match[str] | None, word: str) -> _Read:
    def read() -> str | float:
        if answer.labels:
            return (match["word"] if match else word).casefold()
        return parse_number(answer, word)

    return read


def _pattern(answer: Answer) -> re.Pattern[str]:
    """The pattern of what follows ``Score:``: a number, or one of the labels."""
    if not answer.labels:
        return _VALUE
    words = "|".join(map(re.escape, sorted(answer.labels, key=len, reverse=True)))
    return re.compile(rf"{_OPEN}(?P<word>{words})(?!{_LETTER}){_CLOSE}", re.IGNORECASE)


def _kind(answer: Answer) -> str:
    return f"none of {', '.join(answer.labels)}" if answer.labels else "no number"


def _to_number(answer: Answer, match: re.Match[str]) -> float:
    word, maximum = match["word"], match["maximum"]
    if maximum is not None and _to_float(maximum) != answer.maximum:
        raise UnusableAnswerError(f"'{word}/{maximum}', and the maximum of the judge is {answer.maximum:g}")
    return _to_float(word)


def _to_float(word: str) -> float:
    return float(word.replace("\u2212", "-"))


def _spans(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [match.span() for match in pattern.finditer(text)]


def _is_in(spans: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in spans)
