"""Words that can follow a number and name no unit: pronouns, verbs, negations, comparisons, opinions, fractions."""

from __future__ import annotations

import re

__all__ = ["names_unit"]

_WORDS = """
i you we he she they me him this that these those my your our his her their its
which who whom whose what where when why how
am is are was were be been being isn't aren't wasn't do does did don't doesn't has have had having
can could may might must shall should will would cannot can't won't
think guess guessing believe suppose assume know equals
not no nor never none neither either both unless if whether though although because since so then thus therefore
however instead rather but yet except and or than as
more less fewer most least at between to from until about approximately approx roughly around almost nearly
exactly precisely maybe perhaps possibly probably likely surely certainly definitely plus minus answer
fails failed works worked seems looks appears holds exceeds satisfies contradicts rejected excluded discarded
below above under over beyond hundred thousand million billion trillion
"""
_LAST = """
wrong incorrect false invalid impossible correct true right sure unsure unlikely ok
squared cubed factorial half halves thirds fourths fifths sixths eighths tenths hundredths thousandths
"""
_FUNCTION_WORDS, _LAST_WORDS = frozenset(_WORDS.split()), frozenset(_LAST.split())
_MAX_WORDS = 6
_OBJECT = re.compile(r"\b(?!(?:of|per|in|for|on|by|with)\b)[a-z]+\s+the\b")
"""An article after a word that is no preposition, as in "exceeds the limit"."""
_LETTERS = re.compile(r"[^\W\d_]+(?:'[a-z]+)?")


def names_unit(words: str) -> bool:
    """Whether words after a number can name its unit, or what is counted.

    >>> names_unit("square cm"), names_unit("students per class"), names_unit("of the pie")
    (True, True, True)
    >>> names_unit("is not the answer"), names_unit("or more"), names_unit("wrong")
    (False, False, False)
    """
    words = words.replace("\u2019", "'").lower()
    found = _LETTERS.findall(words)
    is_plain = len(found) <= _MAX_WORDS and "?" not in words and not _FUNCTION_WORDS.intersection(found)
    is_plain = is_plain and not _OBJECT.search(words)
    return is_plain and not (found and found[-1] in _LAST_WORDS)
