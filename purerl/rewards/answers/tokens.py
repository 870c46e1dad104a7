r"""Tokens of an answer in LaTeX or plain text: numbers, names, words, operators, relations and separators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from purerl.rewards.answers.nodes import AnswerSyntaxError
from purerl.rewards.answers.units import is_unit

__all__ = ["Token", "tokenize"]


class Token(NamedTuple):
    """A token.

    number, name, function, word, unit, set          the text
    op          + - * / ^ _ ! | : & ' newline pm mp cup cap minus, and names of notation such as frac
    relation    = != < <= > >= ~ in equiv
    separator   , or and
    open, close ( ) [ ] { } group (an invisible brace of LaTeX) < > abs floor ceil
    begin       the name of an environment; `end` ends it
    last        the end of the answer
    """

    kind: str
    text: str


_NAMES = {
    "function": "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc asin acos atan sinh cosh tanh "
    "ln log lg exp",
    "greek": "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar",
    "text style": "text textbf textit textrm textnormal textsf mbox hbox mathrm mathsf mathit operatorname",
    "symbol style": "mathbf boldsymbol bm mathcal mathfrak vec hat bar overline overrightarrow tilde angle triangle",
    "ignored": "boxed fbox underline emph",
    "word": "yes no odd one two all",
}
_FUNCTIONS, _GREEK, _TEXT_STYLES, _SYMBOL_STYLES, _IGNORED, _SHORT_WORDS = (
    frozenset(names.split()) for names in _NAMES.values()
)
_TABLE = """
op *: cdot times ast; /: div; +: plus; -: minus; pm: pm; mp: mp; cup: cup bigcup; cap: cap
op minus: setminus backslash smallsetminus; :: colon; |: mid vert; ': prime; frac: frac dfrac tfrac cfrac
op binom: binom dbinom tbinom; sqrt: sqrt; choose: choose; over: over; pmod: pmod bmod mod
relation =: eq; !=: ne neq; <: lt; >: gt; <=: le leq leqslant leqq; >=: ge geq geqslant geqq
relation ~: approx simeq thickapprox; in: in; equiv: equiv
separator or: lor vee; and: land wedge
open {: lbrace; [: lbrack; (: lparen; <: langle; abs: lvert; floor: lfloor; ceil: lceil
close }: rbrace; ]: rbrack; ): rparen; >: rangle; abs: rvert; floor: rfloor; ceil: rceil
name infinity: infty; pi: pi
set empty: emptyset varnothing
unit degree: degree; euro: euro; gbp: pounds; yen: yen
"""
"""Kinds of tokens, and the commands of LaTeX for each text of a kind."""
_COMMANDS = {
    command: Token(kind, text)
    for kind, _, entries in (line.partition(" ") for line in _TABLE.strip().splitlines())
    for text, _, commands in (entry.rpartition(": ") for entry in entries.split("; "))
    for command in commands.split()
}
_COMMANDS |= {name: Token("function", name) for name in _FUNCTIONS} | {name: Token("name", name) for name in _GREEK}
_CHARACTERS = {
    **{character: Token("op", character) for character in "+-*/^_!|:&'"},
    **{character: Token("open", character) for character in "(["},
    **{character: Token("close", character) for character in ")]"},
    **{character: Token("relation", character) for character in "=<>"},
    "{": Token("open", "group"),
    "}": Token("close", "group"),
    ",": Token("separator", ","),
    ";": Token("separator", ","),
    "%": Token("unit", "percent"),
}
_ESCAPED = {
    "{": Token("open", "{"),
    "}": Token("close", "}"),
    "%": Token("unit", "percent"),
    "$": Token("unit", "dollar"),
    "\\": Token("op", "newline"),
    "|": Token("op", "norm"),
    "&": Token("op", "&"),
}
_PAIRS = {
    **{pair: Token("relation", pair) for pair in ("<=", ">=", "!=")},
    "=<": Token("relation", "<="),
    "**": Token("op", "^"),
}
_WORDS = {
    "or": Token("separator", "or"),
    "and": Token("separator", "and"),
    "to": Token("op", ":"),
    "pi": Token("name", "pi"),
    "infinity": Token("name", "infinity"),
    "infinite": Token("name", "infinity"),
    **{name: Token("function", name) for name in _FUNCTIONS},
    "sqrt": Token("op", "sqrt"),
    "percent": Token("unit", "percent"),
    "degree": Token("unit", "degree"),
    "degrees": Token("unit", "degree"),
    **{word: Token("word", word) for word in _SHORT_WORDS},
}
_SETS = ("R", "Z", "N", "Q", "C")

_TOKEN = re.compile(
    r"""\\(?P<command>[a-zA-Z]+)\*?
    | \\(?P<escaped>.)
    | (?P<number> (?<![\d.]) \d{1,3}(?:[ ]\d{3})+(?![\d.,]|[ ]\d) (?:\.\d+)? | \d+(?:\.\d+)?(?:[eE][-+]?\d+)? | \.\d+)
    | (?P<letters> [A-Za-z]+)
    | (?P<pair> <= | =< | >= | != | \*\*)
    | (?P<space> \s+)
    | (?P<character> .)""",
    re.VERBOSE | re.DOTALL,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_GROUP = re.compile(r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_LETTERS = re.compile(r"\s*([A-Za-z]+)")
_RATE = re.compile(r"([A-Za-z]+)\s*/\s*([A-Za-z]+)")
_VOWEL = re.compile("[aeiou]", re.IGNORECASE)
_FUNCTION_OF_LETTER = re.compile(r"(sin|cos|tan|cot|sec|csc|ln|log|exp)([a-z])")


def tokenize(text: str) -> list[Token]:
    r"""The tokens of a text that `clean` has normalized, and a last one of the kind "last".

    Raises: AnswerSyntaxError.

    >>> [token.text for token in tokenize(r"x \le 10 \text{ square cm}")]
    ['x', '<=', '10', 'square cm', 'the end']
    """
    return [*_merge_words(_tokens(text, in_text=False)), Token("last", "the end")]


def _tokens(text: str, *, in_text: bool) -> Iterator[Token]:
    """The tokens of a text. `in_text`: it is in a command for words, where letters are no variables."""
    position, depth, previous = 0, 0, Token("last", "")
    while position < len(text):
        if depth == 0 and (match := _THOUSANDS.match(text, position)):
            tokens, position = [Token("number", match[0].replace(",", ""))], match.end()
        else:
            tokens, position = _read(text, position, previous, in_text=in_text)
        for token in tokens:
            depth += _DEPTHS.get(token.kind, 0) if token.text != "group" else 0
            previous = token
            yield token


_DEPTHS = {"open": 1, "close": -1}


def _read(text: str, position: int, previous: Token, *, in_text: bool) -> tuple[list[Token], int]:
    """The tokens at `position`, and the position after them."""
    match = next(_TOKEN.finditer(text, position))
    kind, end = match.lastgroup or "", match.end()
    if kind == "command":
        return _read_command(match[kind], text, end)
    if kind == "letters":
        rate = _RATE.match(text, position) if previous.kind == "number" else None
        if rate and all(map(is_unit, rate.groups())):
            return [Token("word", rate[0])], rate.end()
        return _read_letters(match[kind], previous, in_text=in_text), end
    if kind == "number":
        return [Token("number", match[kind].replace(" ", ""))], end
    if kind == "space":
        return [], end
    if match[kind] not in _TOKENS[kind]:
        raise AnswerSyntaxError(f"unknown notation {match[0]!r}")
    return [_TOKENS[kind][match[kind]]], end


_TOKENS = {"escaped": _ESCAPED, "pair": _PAIRS, "character": _CHARACTERS}


def _read_command(name: str, text: str, position: int) -> tuple[list[Token], int]:
    if name in _COMMANDS:
        return [_COMMANDS[name]], position
    if name in _IGNORED:
        return [], position
    if name in _SYMBOL_STYLES:
        return _read_symbol(name, text, position)
    group = _GROUP.match(text, position)
    if group is None:
        raise AnswerSyntaxError(f"unknown notation \\{name}")
    content, end = group[1].strip(), group.end()
    if name in _TEXT_STYLES:
        return [*_merge_words(_tokens(content, in_text=True))], end
    if name in ("begin", "end"):
        return [Token(name, content)], end
    if name == "mathbb" and content in _SETS:
        return [Token("set", content)], end
    raise AnswerSyntaxError(f"unknown notation \\{name}")


def _read_symbol(style: str, text: str, position: int) -> tuple[list[Token], int]:
    r"""A symbol such as ``\vec{v}``, named with its accent. A bold letter or number has no accent."""
    group = _GROUP.match(text, position) or _LETTERS.match(text, position)
    if group is None:
        raise AnswerSyntaxError(f"\\{style} without a symbol")
    content = group[1].strip()
    if style in ("mathbf", "boldsymbol", "bm"):
        return [*_tokens(content, in_text=len(content) > 1)], group.end()
    return [Token("name", f"{style} {content}")], group.end()


def _read_letters(run: str, previous: Token, *, in_text: bool) -> list[Token]:
    """Words, functions, units after a number, or one symbol per letter; capital letters together are one symbol."""
    if len(run) > 1 and run.lower() in _WORDS:
        return [_WORDS[run.lower()]]
    if match := _FUNCTION_OF_LETTER.fullmatch(run):
        return [Token("function", match[1]), Token("name", match[2])]
    is_after_number = previous.kind == "number" and len(run) > 1 and is_unit(run)
    is_after_word = previous.kind == "word" and len(run) > 2  # 12 years old
    if is_after_number or is_after_word or (in_text and run not in ("e", "i")) or _is_word(run):
        return [Token("word", run)]
    return [Token("name", run)] if run.isupper() else [Token("name", letter) for letter in run]


def _is_word(run: str) -> bool:
    minimum = 3 if run[0].isupper() else 4
    return len(run) >= minimum and run[1:].islower() and bool(_VOWEL.search(run))


def _merge_words(tokens: Iterable[Token]) -> Iterator[Token]:
    for is_word, group in groupby(tokens, key=lambda token: token.kind == "word"):
        if is_word:
            yield Token("word", " ".join(token.text for token in group))
        else:
            yield from group
