r"""The parser of answers: from text in LaTeX, Unicode or plain notation to a tree of `purerl.rewards.answers.nodes`.

Each method of `_Parser` reads one line of the grammar::

    answer   = relation ((, ; and or) relation)*
    relation = [union] ((= < in ...) union)* [\pmod ...]
    union    = ratio ((\cup \setminus) ratio)*
    ratio    = sum (: sum)*
    sum      = signed ((+ - \pm) signed)*
    signed   = [+ - \pm] product
    product  = power ((* / or nothing) power)*
    power    = atom (^ ! % and other suffixes)*
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

from purerl.rewards.answers.cursor import Cursor
from purerl.rewards.answers.nodes import AnswerSyntaxError, Node, number
from purerl.rewards.answers.notations import read_notation
from purerl.rewards.answers.quantities import is_compound
from purerl.rewards.answers.tokens import Token, tokenize
from purerl.rewards.answers.words import from_words

__all__ = ["parse"]

_MAX_DEPTH = 40
_MAX_DIGITS = 400
_SUMS = {"+": "add", "-": "sub", "pm": "plus_minus", "mp": "minus_plus"}
_UNIONS = {"cup": "union", "minus": "difference"}
_CLOSING = {"(": ")]", "[": "])", "<": ">", "group": ("group",)}
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array")


def parse(text: str) -> Node:
    r"""The tree of an answer that `clean` has normalized.

    Raises: AnswerSyntaxError if it is empty, or not in a notation that can be read.

    >>> parse(r"x < \frac12").args[1:]
    ('<', Node(op='div', args=(Node(op='number', args=(Fraction(1, 1),)), Node(op='number', args=(Fraction(2, 1),)))))
    """
    return read_notation(text) or _Parser(Cursor(tokenize(text))).parse()


class _Parser:
    def __init__(self, cursor: Cursor):
        self._cursor, self._accept, self._expect = cursor, cursor.accept, cursor.expect
        self._depth = 0  # of atoms in atoms
        self._bars = 0  # the number of | that are open
        self._in_set = False  # a | or : is the start of a condition

    def parse(self) -> Node:
        """The complete answer."""
        node = self._answer()
        self._expect("last")
        return node

    # --- lists, relations, sets

    def _answer(self) -> Node:
        items, words = [self._relation()], set()
        while self._cursor.next.kind == "separator":
            while token := self._accept("separator"):
                words.add(token.text)
            items.append(self._relation())
        if len(items) == 1:
            return items[0]
        if words == {"and"} and len(items) == 2 and is_compound(*items):
            return Node("add", tuple(items))
        return Node(next((word for word in ("or", "and") if word in words), "list"), tuple(items))

    def _relation(self) -> Node:
        first = None if self._cursor.next.kind == "relation" else self._union()
        parts: list[Node | str | None] = [first]
        while token := self._accept("relation"):
            parts += [token.text, self._union()]
        if self._is_modulus():
            return Node("residue", (parts[-1], self._modulus()))
        return first if first and len(parts) == 1 else Node("relation", tuple(parts))

    def _is_modulus(self) -> bool:
        modulus = Token("op", "pmod")
        has_bracket = self._cursor.next == Token("open", "(") and self._cursor.after_next == modulus
        return has_bracket or self._cursor.next == modulus

    def _modulus(self) -> Node:
        has_bracket = self._accept("open", "(")
        self._expect("op", "pmod")
        modulus = self._power()
        if has_bracket:
            self._expect("close", ")")
        return modulus

    def _union(self) -> Node:
        node = self._ratio()
        while token := self._accept("op", *_UNIONS):
            node = Node(_UNIONS[token.text], (node, self._ratio()))
        return node

    def _ratio(self) -> Node:
        items = [self._sum()]
        while not self._in_set and self._accept("op", ":"):
            items.append(self._sum())
        return items[0] if len(items) == 1 else Node("ratio", tuple(items))

    # --- arithmetic

    def _sum(self) -> Node:
        node = self._signed()
        while self._cursor.next.kind == "number" and self._cursor.previous.kind in ("word", "unit"):
            node = Node("add", (node, self._product()))  # 2 hours 30 minutes
        while token := self._accept("op", *_SUMS):
            node = Node(_SUMS[token.text], (node, self._signed()))
        return node

    def _signed(self) -> Node:
        sign = self._accept("op", *_SUMS)
        if sign and self._cursor.next in (Token("op", "-"), Token("op", "+")):
            raise AnswerSyntaxError("two signs")
        product = self._product()
        if sign is None or sign.text == "+":
            return product
        return Node("neg", (product,)) if sign.text == "-" else Node(_SUMS[sign.text], (None, product))

    def _product(self) -> Node:
        node = self._power()
        while True:
            if token := self._accept("op", "*", "/"):
                node = Node("mul" if token.text == "*" else "div", (node, self._signed_by(self._power)))
            elif self._starts_factor():
                node = Node("mul", (node, self._power()))
            else:
                return node

    def _signed_by(self, parse: Callable[[], Node]) -> Node:
        """Read with `parse`, after an optional sign."""
        sign = self._accept("op", "-", "+")
        node = parse()
        return Node("neg", (node,)) if sign and sign.text == "-" else node

    def _starts_factor(self) -> bool:
        """Whether the next token starts a factor without a sign; a number does only after a symbol or a bracket."""
        token, previous = self._cursor.next, self._cursor.previous
        match token.kind:
            case "number":
                return previous.kind == "name" or previous in (Token("close", ")"), Token("op", "!"))
            case "open":
                return token.text != "[" and not self._is_modulus()
            case "op":
                is_bar = token.text == "|" and not self._bars and not self._in_set
                return is_bar or token.text in ("frac", "binom", "sqrt")
        return token.kind in ("name", "function", "word", "unit", "begin")

    def _power(self) -> Node:
        node = self._atom()
        while True:
            if self._accept("op", "^"):
                node = Node("pow", (node, self._signed_by(self._atom)))
            elif self._accept("op", "!"):
                node = Node("fact", (node,))
            elif token := self._accept("unit", "percent", "degree"):
                node = Node("mul", (node, Node("unit", (token.text,))))
            else:
                return node

    # --- atoms

    def _atom(self) -> Node:
        token = self._cursor.advance()
        read = self._ATOMS.get(token.kind)
        if read is None:
            raise AnswerSyntaxError(f"unexpected {token.text!r}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise AnswerSyntaxError("too many nested brackets")
        node = read(self, token.text)
        self._depth -= 1
        return node

    def _number(self, text: str) -> Node:
        value, start = _read_number(text), self._cursor.position
        fraction = self._fraction() if value.denominator == 1 else None
        if fraction is None:
            self._cursor.position = start
        return number(value + (fraction or 0))

    def _fraction(self) -> Fraction | None:
        """A fraction of two numbers that is between 0 and 1; None if something else follows."""
        if self._accept("op", "frac"):
            parts = [self._argument(), self._argument()]
        elif self._cursor.next.kind == "number":
            parts = [number(_read_number(self._cursor.advance().text))]
            if self._accept("op", "/") and self._cursor.next.kind == "number":
                parts.append(number(_read_number(self._cursor.advance().text)))
        else:
            return None
        values = [part.args[0] for part in parts if part.op == "number"]
        return values[0] / values[1] if len(values) == 2 and 0 < values[0] < values[1] else None

    def _symbol(self, name: str) -> Node:
        if name == "infinity":
            return Node("infinity")
        while self._accept("op", "'"):
            name += "'"
        if self._accept("op", "_"):
            name += "_" + self._subscript()
        return Node("symbol", (name,))

    def _subscript(self) -> str:
        if not self._accept("open", "group"):
            return self._cursor.advance().text
        texts = []
        while not self._accept("close", "group"):
            if self._cursor.next.kind == "last":
                raise AnswerSyntaxError("a subscript without an end")
            texts.append(self._cursor.advance().text)
        return "".join(texts)

    def _unit(self, unit: str) -> Node:
        if unit in ("degree", "percent"):
            raise AnswerSyntaxError(f"{unit} without a number")
        amount = self._accept("number")
        node = Node("unit", (unit,))
        return Node("mul", (number(_read_number(amount.text)), node)) if amount else node

    def _argument(self) -> Node:
        """An argument of a command of LaTeX: a group, or a single digit or letter."""
        self._cursor.split_number()
        return self._radicand()

    def _radicand(self) -> Node:
        token = self._accept("number")
        return number(_read_number(token.text)) if token else self._atom()

    def _operation(self, name: str) -> Node:
        match name:
            case "frac" | "binom":
                return Node("div" if name == "frac" else name, (self._argument(), self._argument()))
            case "sqrt":
                return self._root()
            case "|":
                return self._absolute()
        raise AnswerSyntaxError(f"unexpected {name!r}")

    def _root(self) -> Node:
        degree = number(2)
        if self._accept("open", "["):
            degree = self._nested(self._sum)
            self._expect("close", "]")
        return Node("root", (self._radicand(), degree))

    def _absolute(self) -> Node:
        self._bars += 1
        node = self._sum()
        self._expect("op", "|")
        self._bars -= 1
        return Node("abs", (node,))

    def _function(self, name: str) -> Node:
        """A function with its subscript, its superscript and its argument, which needs no brackets."""
        name, base, power = _ALIASES.get(name, name), None, None
        while token := self._accept("op", "_", "^"):
            if token.text == "_":
                base = self._argument()
            else:
                power = self._signed_by(self._atom)
        if power == Node("neg", (number(1),)) and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            name, power = f"arc{name}", None
        if base is not None and name != "log":
            raise AnswerSyntaxError(f"{name} with a subscript")
        argument = self._function_argument()
        node = Node("call", (name, argument, *((base,) if base else ())))
        node = Node("pow", (Node("symbol", ("e",)), argument)) if name == "exp" else node
        return Node("pow", (node, power)) if power else node

    def _function_argument(self) -> Node:
        if self._cursor.next in (Token("open", "("), Token("open", "[")):
            return self._atom()
        node = self._power()
        while self._cursor.next.kind != "function" and self._starts_factor():
            node = Node("mul", (node, self._power()))
        return node

    # --- brackets

    def _nested(self, parse: Callable[[], Node]) -> Node:
        """Call `parse` for the content of brackets, where | and : have their usual meaning."""
        bars, self._bars, in_set, self._in_set = self._bars, 0, self._in_set, False
        node = parse()
        self._bars, self._in_set = bars, in_set
        return node

    def _opening(self, opening: str) -> Node:
        if opening == "{":
            return self._nested(self._set)
        if opening in _CLOSING:
            return self._nested(lambda: self._group(opening))
        node = self._nested(self._sum)
        self._expect("close", opening)
        return Node(opening, (node,))

    def _closing(self, closing: str) -> Node:
        """]1, 2[ is the open interval (1, 2)."""
        if closing != "]":
            raise AnswerSyntaxError(f"unexpected {closing!r}")
        return self._opening("(")

    def _group(self, opening: str) -> Node:
        node = self._answer()
        if opening == "group" and (infix := self._accept("op", "choose", "over")):
            node = Node("binom" if infix.text == "choose" else "div", (node, self._answer()))
        is_reversed = opening in "([" and self._accept("open", "[")
        closing = ")" if is_reversed else self._expect("close", *_CLOSING[opening]).text
        if opening == "group":  # {1, 2} is a set, although LaTeX does not show these braces
            is_set = node.op == "list" and all(item.op == "number" for item in node.args)
            return Node("braces", node.args) if is_set else node
        brackets = "()" if opening == "<" else opening + closing
        if node.op == "list":
            return Node("bracket", (brackets, *node.args))
        return node if brackets == "()" or node.op == "matrix" else Node("bracket", (brackets, node))

    def _set(self) -> Node:
        if self._accept("close", "}"):
            return Node("set", ("empty",))
        self._in_set = True
        node = self._answer()
        has_condition = self._accept("op", "|", ":")
        self._in_set = False
        if has_condition:
            node = Node("builder", (node, self._answer()))
        else:
            node = Node("braces", node.args if node.op in ("list", "and") else (node,))
        self._expect("close", "}")
        return node

    def _environment(self, name: str) -> Node:
        if name not in (*_MATRICES, "cases"):
            raise AnswerSyntaxError(f"unknown environment {name!r}")
        if name == "array":
            self._expect("open", "group")
            self._columns()
        rows: list[Node] = []
        while not self._accept("end", name):
            rows.append(Node("bracket", ("()", *self._nested(self._row).args)))
            while self._accept("op", "newline"):
                pass
        if name == "cases":
            return Node("list", tuple(row.args[1] if len(row.args) == 2 else row for row in rows))
        return Node("matrix", tuple(rows))

    def _columns(self) -> None:
        """The columns of an array, such as {cc|c}."""
        while not self._accept("close", "group"):
            if self._cursor.advance().kind == "last":
                raise AnswerSyntaxError("an array without an end")

    def _row(self) -> Node:
        cells = [self._answer()]
        while self._accept("op", "&"):
            cells.append(self._answer())
        return Node("list", tuple(cells))

    _ATOMS: ClassVar[dict[str, Callable[[_Parser, str], Node]]] = {
        "number": _number,
        "name": _symbol,
        "word": lambda _, text: from_words(text),
        "set": lambda _, text: Node("set", (text,)),
        "unit": _unit,
        "function": _function,
        "open": _opening,
        "close": _closing,
        "begin": _environment,
        "op": _operation,
    }


def _read_number(text: str) -> Fraction:
    exponent = text.lower().partition("e")[2]
    if len(text) > _MAX_DIGITS or len(exponent) > 4 or abs(int(exponent or 0)) > _MAX_DIGITS:
        raise AnswerSyntaxError("a number that is too long")
    return Fraction(text)
