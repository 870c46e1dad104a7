"""Expressions in the ASCII notation of docstrings as LaTeX: a tokenizer and a recursive-descent parser.

The grammar; [x] is optional, {x} is repeated:

    text        comparison {mark [comparison]}
    comparison  sum {relation sum}
    sum         [sign] product {sign product}
    product     ["-"] power {["*" | "@" | "/"] power}
    power       atom ["^" atom]
    atom        number, name, function power, operator product, operator "of" sum, name(text), name[text] or (text)

The notation mixes formulas and English. A name of several letters (`tokens`, `of`) is a word, unless it is called, is a
Greek letter, or has an underscore. Words are separated by spaces. Other factors side by side are multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["RELATIONS", "Token", "latex", "split", "tokenize"]

_TOKEN = re.compile(
    r"""
      (?P<number> \d+\.?\d* | \.\d+ )
    | (?P<relation> <= | >= | <- | -= | \|\| | [=<>] )
    | (?P<word> [A-Za-z]{2,}(?:[-'@][A-Za-z]+)+ | [A-Za-z]+'(?!\w) | a(?=\ [a-z]{2}) )    # row's, pass@k, rows', a
    | (?P<name> [A-Za-z](?:'(?=_))?\w*(?:(?<=_)\{[^{}]*\})? | \.\.\. )
    | (?P<minus> (?<![^\s(\[{|])-(?=[^\s+]) )    # the one of "of -x"; that of "a - x" is a sign
    | (?P<sign> -\+ | [+-] )
    | (?P<power> \*\* | \^ )
    | (?P<times> [*@] )
    | (?P<slash> / )
    | (?P<open> [(\[{] | (?<![^\s(\[{])\|(?=\S) )
    | (?P<close> [)\]}|] )
    | (?P<mark> [,;:.](?!\w) )
    | (?P<unknown> \S )
    """,
    re.VERBOSE,
)
_PHRASES = {
    r"\b(?:the )?(sum|mean|product) over (.+?) of ": r"\1_{\2} of ",
    r"\b1e(-?\d+)": r"10^(\1)",
    r"\.T\b": "^T",
}


class Token(NamedTuple):
    """`kind` is the group of the pattern that matched. `glued` is true if no space precedes the token."""

    kind: str
    text: str
    glued: bool = False


def tokenize(text: str) -> list[Token]:
    """The tokens of `text`. "mean over rows of x" is read as "mean_{rows} of x"."""
    for phrase, notation in _PHRASES.items():
        text = re.sub(phrase, notation, text)
    return [Token(str(m.lastgroup), m[0], text[: m.start()][-1:].strip() != "") for m in _TOKEN.finditer(text)]


def split(tokens: Iterable[Token], *marks: str) -> list[list[Token]]:
    """The parts of `tokens` between those whose text is in `marks`. Tokens in parentheses do not count."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        if depth == 0 and token.text in marks:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def latex(tokens: Iterable[Token], comma: str = r",\ ") -> str:
    r"""The LaTeX of a text, with `comma` for each comma outside of parentheses. Raises: ValueError.

    >>> print(latex(tokenize("-(1 / rows) sum_i A_i sum_t logp_it")))
    {-}\dfrac{1}{\mathrm{rows}} \sum_{i} A_{i} \sum_{t} \mathrm{logp}_{it}
    """
    parser = _Parser([*tokens, Token("end", "the end")])
    result = parser.text(comma)
    parser.expect("end")
    return result.latex


class _Part(NamedTuple):
    """A part of an expression. `inner` is what parentheses enclose, or the plain text of a word.

    The kinds are "factor", "fraction", "word", "terms" (a sum of several products) and "relation".
    """

    latex: str
    kind: str = "factor"
    inner: str = ""


RELATIONS = {"=": "=", "<": "<", ">": ">", "<=": r"\le", ">=": r"\ge", "<-": r"\leftarrow"}
RELATIONS |= {"-=": r"\mathrel{-}=", "||": r"\parallel"}
_SYMBOLS = {**RELATIONS, "-+": r"\mp", "*": r"\cdot", "@": r"\,"}
_ATOMS = ("number", "word", "name", "open")


class _Parser:
    """A method for each rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.index = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.index]

    def take(self, *kinds: str) -> Token | None:
        """Consume and return the next token if it is of one of `kinds`."""
        if self.next.kind not in kinds:
            return None
        self.index += 1
        return self.tokens[self.index - 1]

    def expect(self, *kinds: str) -> Token:
        if token := self.take(*kinds):
            return token
        raise ValueError(f"unexpected {self.next.text!r} after {self.tokens[self.index - 1].text!r}")

    def text(self, comma: str = r",\ ") -> _Part:
        result = self.comparison()
        while mark := self.take("mark"):
            symbol = {",": comma, ":": r"\text{:}\ "}.get(mark.text, rf"{mark.text}\ ")
            after = self.comparison() if self.next.kind in (*_ATOMS, "minus") else _Part("")
            if after.kind == "relation":
                symbol = symbol.replace(r",\ ", r",\quad ")
            result = _Part(f"{result.latex}{symbol}{after.latex}")
        return result

    def comparison(self) -> _Part:
        return self.chain("relation", self.sum, "relation")

    def sum(self) -> _Part:
        return self.chain("sign", self.product, "terms")

    def chain(self, operator: str, operand: Callable[[], _Part], kind: str) -> _Part:
        result = operand()
        while token := self.take(operator):
            result = _Part(f"{result.latex} {_SYMBOLS.get(token.text, token.text)} {operand().latex}", kind)
        return result

    def product(self) -> _Part:
        if sign := self.take("minus", "sign"):
            prefix = "{-}" if sign.kind == "minus" else f"{{}} {sign.text} "
            return _Part(prefix + self.product().latex)
        parts = [self.power()]
        while self.next.kind in (*_ATOMS, "minus", "times", "slash"):
            if operator := self.take("times"):
                parts[-1] = _Part(f"{parts[-1].latex} {_SYMBOLS[operator.text]} {self.power().latex}")
            elif self.take("slash"):
                self.divide(parts)
            else:
                parts.append(self.product() if self.next.kind == "minus" else self.power())
        return _joined(parts)

    def divide(self, parts: list[_Part]) -> None:
        """Replace the factors at the end of `parts` by a fraction. In a phrase of words, keep the slash.

        The operands of a slash in "variance of the shares / P" have no clear start or end.
        """
        below = self.power()
        after = self.next.kind == "word" or _is_word(self.next.text)
        if [part.kind for part in parts[-2:]] == ["word", "word"] or (below.kind == "word" and after):
            parts[-1] = _Part(rf"{parts[-1].latex} \mathbin{{/}} {below.latex}", "fraction")
            return
        start = len(parts) - 1
        while start > 0 and parts[start - 1].kind == parts[-1].kind == "factor":
            start -= 1
        parts[start:] = [_Part(rf"\dfrac{{{_unfenced(_joined(parts[start:]))}}}{{{_unfenced(below)}}}", "fraction")]

    def power(self) -> _Part:
        base = self.atom()
        return _Part(f"{base.latex}^{{{_unfenced(self.atom())}}}") if self.take("power") else base

    def atom(self) -> _Part:
        token = self.expect(*_ATOMS)
        match token.kind:
            case "number":
                glued = self.next.kind == "name" and self.next.glued  # 4n^2
                return _Part(token.text + (self.power().latex if glued else ""))
            case "word":
                return _Part(rf"\text{{{token.text}}}", "word", token.text)
            case "open":
                inner = self.enclosed(token.text)
                fraction = token.text == "(" and inner.kind == "fraction" and self.next.kind != "power"
                return inner if fraction else _Part(_fenced(token.text, inner.latex), inner=inner.latex)
            case _:
                is_call = self.next.text in ("(", "[") and self.next.glued
                return self.call(token.text) if is_call else self.name(token.text)

    def enclosed(self, opening: str) -> _Part:
        """The text up to the parenthesis that closes `opening`."""
        inner = self.text(comma=", ")
        if self.expect("close").text not in _FENCES[opening]:
            raise ValueError(f"{opening!r} is not closed")
        return inner

    def call(self, name: str) -> _Part:
        opening = self.expect("open").text
        if name == "C":
            upper, _, lower, _ = self.sum(), self.expect("mark"), self.sum(), self.expect("close")
            return _Part(rf"\binom{{{upper.latex}}}{{{lower.latex}}}")
        inner = self.enclosed(opening).latex
        if name in _FENCES or name == "sqrt":
            return _Part(_fenced(name, inner) if name in _FENCES else rf"\sqrt{{{inner}}}")
        space = r"\!" if _TALL.search(inner) else ""  # TeX adds a space before tall parentheses
        return _Part(f"{_symbol(name, 'operatorname')}{space}{_fenced(opening, inner)}")

    def name(self, text: str) -> _Part:
        symbol = _symbol(text)
        if text == "d" and self.next.kind == "name":  # d logp / d z
            return _Part(rf"\mathrm{{d}}\,{self.power().latex}")
        if symbol.startswith(_OPERATORS) and "_" in text:  # "of" means: of all terms that follow
            body = self.sum() if self.next.text == "of" and self.take("name") else self.product()
            bare = body.kind != "terms" and not body.latex.startswith("{-}")
            return _Part(f"{symbol} {body.latex if bare else _fenced('[', body.latex)}")
        if symbol.startswith(_FUNCTIONS) and self.next.kind in _ATOMS and self.next.text != "of":
            return _Part(f"{symbol} {self.power().latex}")
        return _Part(_upright(text), "word", text) if _is_word(text) else _Part(symbol)


def _joined(parts: list[_Part]) -> _Part:
    """The parts side by side. Words become a phrase."""
    joined = parts[:1]
    for part in parts[1:]:
        last = joined[-1]
        if part.kind == last.kind == "word":
            text = f"{last.inner} {part.inner}"
            joined[-1] = _Part(rf"\text{{{text}}}", "word", text)
        elif "word" in (part.kind, last.kind):
            joined += [_Part(r"\ "), part]
        else:
            operator = part.latex.startswith((*_OPERATORS, *_FUNCTIONS, r"\operatorname"))  # TeX adds the space
            joined += [_Part(" " if operator else r"\,"), part]
    return joined[0] if len(joined) == 1 else _Part("".join(part.latex for part in joined))


def _unfenced(part: _Part) -> str:
    return part.inner if part.kind == "factor" and part.inner else part.latex


_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu", "pi", "rho")
_GREEK += ("sigma", "tau", "phi", "chi", "psi", "omega")
_OPERATORS = (r"\sum", r"\prod", r"\operatorname*")
_FUNCTIONS = (r"\exp", r"\log", r"\max", r"\min")
_MACROS = {"sum": r"\sum", "product": r"\prod", "l": r"\ell", "...": r"\dots"}
_MACROS |= {"dbar": r"\bar{d}", **{name: rf"\{name}" for name in (*_GREEK, "exp", "log", "max", "min")}}
_FENCES = {"(": "()", "[": "[]", "{": (r"\{", r"\}", "}"), "|": "||", "abs": "||", "floor": (r"\lfloor ", r"\rfloor ")}
_TALL = re.compile(r"\\(?:dfrac|binom|sum|prod|left)")
_INDEXED = re.compile(
    r"(?P<base>\w+?)_(?P<index>[gijknstvT\d]{1,2}|\{.+\})"  # old_logp_it, sum_{j >= k}
    r"|(?P<short>[A-Za-z]|mean|std)(?:(?P<digits>\d+)|_(?P<word>\w+))"  # k3, b_role, mean_role
)


def _is_word(name: str) -> bool:
    return len(name) > 1 and name.isalpha() and name not in _GREEK


def _symbol(name: str, style: str = "mathrm") -> str:
    """The LaTeX of a name. A suffix of index letters is an index: `logp_it`, but not `clip_low`. A'_it has a prime."""
    name, prime = name.replace("'", ""), "'" * name.count("'")
    base, index = name.rstrip("_"), ""
    if match := _INDEXED.fullmatch(name):
        base = match["base"] or match["short"]
        index = match["index"] or match["digits"] or _upright(match["word"])
    if index.startswith("{"):
        index = latex(tokenize(index[1:-1].replace(",", ", ")), comma=",")
        style = "operatorname*" if base == "mean" else style
    symbol = _MACROS.get(base) or (base if len(base) == 1 else _upright(base, style))
    return symbol + prime + (f"_{{{index}}}" if index else "")


def _upright(name: str, style: str = "mathrm") -> str:
    return "\\" + style + "{" + name.replace("_", "\\_") + "}"


def _fenced(kind: str, inner: str) -> str:
    """`inner` in parentheses of its height."""
    opening, closing, *_ = _FENCES[kind]
    return rf"\left{opening}{inner}\right{closing}" if _TALL.search(inner) else f"{opening}{inner}{closing}"
