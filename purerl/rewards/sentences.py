r"""The answer that a sentence states, such as 23 in "The smallest such prime is 23".

Each rule returns None if it does not apply. A sentence that denies or limits its number, such as "It is not 5" or "It
is at least 5", states none.
"""

from __future__ import annotations

import re

__all__ = ["stated_answer"]

_MAX_CHARACTERS = 400
_END = re.compile(r"[.?](?=[\s*]|$)|!(?=\s+(?-i:[A-Z])|[\s*]*$)|,?\s(?:because|since)\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r",?\s(?:as|which|that|who|where|when|while|for|so|with|after|before|by|to)\b(?!\s*[-$\\\d])", re.IGNORECASE
)
_FORMULA = r"(?:\$[^$]+\$|\\\((?:(?!\\\)).)+\\\)|\\\[(?:(?!\\\]).)+\\\])"
_SPAN = re.compile(_FORMULA)
_NUMBER = re.compile(rf"{_FORMULA}|(?<![\w.])-?\\?\$?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?(?:\\?%)?")
_LABELED = re.compile(rf"(?:[A-Za-z]\s?=\s?)?(?:{_NUMBER.pattern})")
_PROSE = re.compile(
    r"[\s*_]*(?!(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|arc\w+|pi)\b)(?:[A-Za-z]{2,}(?:'[a-z]+)?[\s,*]|[AI]\s[a-z]{2})"
)
_NAMED = re.compile(r"\$?\\?[A-Za-z][^$\s]{0,20}\$?\s+(?:is|are|equals|should|must|would|will)\s", re.IGNORECASE)
_IS = re.compile(
    r"""(?: (?<![\w'])(?:is|are|was|were|equals|(?:would|should|must|will|ha(?:s|ve)\s+to)\s+be)
    | \b(?:it|that)['\u2019]s)(?![\w']):?""",
    re.IGNORECASE | re.VERBOSE,
)
_RELATIVE = re.compile(
    r"\b(?:that|which|who)\s+(?:is|are|was|were)\b|\b(?:is|are|was|were)\s+(?:\w+ed|\w+en|drawn|made)\b", re.IGNORECASE
)
"""Verbs of clauses within a sentence: "which is odd", "when 100 is divided by 7"."""
_LEAD = re.compile(
    r"""(?:[\s:*_]*(?:equal\s+to|given\s+by|therefore|thus|then|so|exactly|precisely|simply|just|indeed|only|clearly
    |obviously|actually|definitely)\b)*[\s:*_]*""",
    re.IGNORECASE | re.VERBOSE,
)
_PREDICATE = re.compile(r"[\s*_]*(?:is|are)\s+(?:the|our|my|your|an?)\s", re.IGNORECASE)
_VERB = re.compile(
    r"""\b(?:has|have|had|needs?|takes?|took|costs?|gets?|got|makes?|made|requires?|gives?|gave|yields?|becomes?|earns?
    |earned|pays?|paid|sells?|sold|walks?|walked|travels?|spends?|spent|saves?|saved|lasts?|contains?|eats?|ate
    |drinks?|reads?|buys?|bought|remains?|leaves?|left|will|must|totals?|receives?|received|runs?|ran|owes?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_DENIAL = re.compile(
    r"""\b(?:not|never|cannot|neither|nor|no|none|without|unless|if|or|either|between|than|least|most|more|less|fewer
    |over|under|above|below|up\s+to|about|around|almost|nearly|roughly|approximately|maybe|perhaps|wrong|incorrect|false
    |except|but|from|impossible|unlikely|unsure|estimated?|doubt)\b | n['\u2019]t\b""",
    re.IGNORECASE | re.VERBOSE,
)
_DENIED_SUBJECT = re.compile(
    r"^(?:(?!\b(?:that|which|who)\b).)*(?:\b(?:not|never|if|unless|doubt|wrong|incorrect|false)\b|n['\u2019]t\b)",
    re.IGNORECASE,
)


def stated_answer(text: str) -> str:
    r"""The answer that `text` starts with or that its first sentence states, without the rest of the sentence.

    >>> stated_answer("The smallest such prime is 23. It is odd."), stated_answer("He needs 15 minutes to get there.")
    ('23', '15 minutes')
    >>> stated_answer("23 is the smallest such prime."), stated_answer("It is not 23."), stated_answer("12, as x = 9")
    ('23', 'It is not 23', '12')
    """
    sentence = _LEAD.sub("", _END.split(text[:_MAX_CHARACTERS], maxsplit=1)[0].strip(" *`"), count=1)
    if not (_PROSE.match(sentence) or _NAMED.match(sentence)):
        return _subject(sentence) or _CLAUSE.split(sentence, maxsplit=1)[0]
    return _predicate(sentence) or _only_number(sentence) or sentence


def _predicate(sentence: str) -> str | None:
    """The formula or the words after the only "is" of a sentence."""
    text = _RELATIVE.sub(_blank, _SPAN.sub(_blank, sentence))
    verbs = [*_IS.finditer(text)]
    if len(verbs) != 1 or _DENIED_SUBJECT.match(text[: verbs[0].start()]):
        return None
    rest = _CLAUSE.split(_LEAD.sub("", sentence[verbs[0].end() :], count=1), maxsplit=1)[0].strip(" *`")
    return None if not rest or _DENIAL.search(_SPAN.sub(_blank, rest)) else rest


def _only_number(sentence: str) -> str | None:
    """The only formula or number of a sentence with a verb, and the words after it."""
    numbers = [*_NUMBER.finditer(sentence)]
    if len(numbers) != 1 or _DENIAL.search(sentence) or not _VERB.search(sentence[: numbers[0].start()]):
        return None
    return _CLAUSE.split(sentence[numbers[0].start() :], maxsplit=1)[0].strip(" *`,")


def _subject(sentence: str) -> str | None:
    """The formula at the start of a sentence such as "23 is the smallest prime"."""
    match = _LABELED.match(sentence)
    rest = sentence[match.end() :] if match else ""
    return match[0] if match and _PREDICATE.match(rest) and not _DENIAL.search(rest) else None


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])
