"""Formulas in docstrings: which blocks are formulas, and their LaTeX.

A formula block is indented and consists of statements, which are aligned at their first relation:

    w_it = 1                           if A_i >= 0
           min(r_it, 1 + clip_high)    else
    loss = -(1 / tokens) sum_it sg(w_it) A_i logp_it
           + coef * KL                 three or more spaces separate a remark

A line that is indented further continues the line above. Cases may also be on one line: "x if c, y if d, else z".
"""

from __future__ import annotations

import re
from textwrap import dedent

from docs.generate.expressions import RELATIONS, Token, latex, split, tokenize
from purerl.errors import InputError

__all__ = ["is_formula", "typeset"]

_IF = ("if", "where")
_ELSE = ("else", "otherwise", "elsewhere")
_GAP = re.compile(rf"(?<=[^\s,;:]) {{3,}}(?! |=|<-|-=|(?:{'|'.join(_IF + _ELSE)})\b)")
_RELATION = re.compile(r"\S +(?:[-<>]?=|<-|[<>]) +\S")
_OPERATOR = re.compile(r"\S [-+*/] \S|\bsum_")
_CODE = re.compile(r'"|>>>|^ *(?:python|purerl) ', re.MULTILINE)


def is_formula(block: str) -> bool:
    """Whether an indented block is a formula. Three or more spaces separate columns.

    The first column of some line has a relation with spaces around it; or the block has one column only, and has an
    operator with spaces around it or a sum. A block with double quotes, a prompt (`>>>`) or a command is code.
    """
    columns = [_GAP.split(line.strip()) for line in block.splitlines()]
    has_relation = any(_RELATION.search(first) for first, *_ in columns)
    is_expression = all(len(line) == 1 for line in columns) and bool(_OPERATOR.search(block))
    return not _CODE.search(block) and (has_relation or is_expression)


def typeset(block: str) -> str:
    r"""The LaTeX of a formula block. Raises: InputError with the statement that cannot be parsed.

    >>> print(typeset("    A_i  = s_i - mean_g        the centered score"))
    \begin{aligned}
    A_{i} &= s_{i} - \mathrm{mean}_{g} \qquad \text{the centered score}
    \end{aligned}
    """
    rows: list[str] = []
    for statement in re.split(r"\n(?! )", dedent(block).strip("\n")):
        try:
            rows += _rows(statement.splitlines())
        except ValueError as error:
            do = "use the notation of docs/generate/expressions.py; end the paragraph above code with '::'"
            raise InputError(f"a formula in a docstring: {error}", got=statement, do=do) from error
    return "\n".join([r"\begin{aligned}", " \\\\[0.3em]\n".join(rows), r"\end{aligned}"])


def _rows(lines: list[str]) -> list[str]:
    """The rows of one statement, each with an `&` where it is aligned."""
    columns = [_GAP.split(line.strip(), maxsplit=1) for line in lines]
    remarks = ["".join(rf" \qquad {latex(tokenize(remark))}" for remark in rest) for _, *rest in columns]
    left, right = _sides(columns[0][0])
    others = [tokenize(formula) for formula, *_ in columns[1:]]
    if cases := _cases([right, *others]):
        return ["".join([left, cases, *remarks])]
    rows = [left + latex(right), *(rf"&\quad {latex(tokens)}" for tokens in others)]
    return [row + remark for row, remark in zip(rows, remarks, strict=True)]


def _sides(formula: str) -> tuple[str, list[Token]]:
    """The LaTeX up to the first relation, at which statements are aligned, and the tokens after it."""
    tokens = tokenize(formula)
    start = len(split(tokens, *RELATIONS)[0])
    if start == len(tokens):
        return "& ", tokens
    return f"{latex(tokens[:start])} &{RELATIONS[tokens[start].text]} ", tokens[start + 1 :]


def _cases(lines: list[list[Token]]) -> str:
    """The LaTeX of cases. Empty if `lines` do not start with one."""
    cases: list[list[Token]] = []
    for tokens in lines:
        for k, part in enumerate(split(tokens, ",")):
            if len(split(part, *_IF, *_ELSE)) > 1:
                cases.append(part)
            elif not cases:
                return ""
            else:  # the condition has commas, or continues on the next line
                cases[-1] += [*[Token("mark", ",")][:k], *part]
    pairs = [pair for case in cases for pair in _case(case)]
    rows = [f"{latex(value)} & {latex(condition, comma=', ')}" for value, condition in pairs]
    if len(rows) == 1:
        return rows[0].replace(" & ", r"\quad ")
    return "".join([r"\begin{cases} ", r" \\ ".join(rows), r" \end{cases}"])


def _case(tokens: list[Token]) -> list[tuple[list[Token], list[Token]]]:
    """The values and their conditions."""
    marks = ["if" if token.text in _IF else "else" for token in tokens if token.text in _IF + _ELSE]
    match marks, split(tokens, *_IF, *_ELSE):
        case [["if"], [value, condition]] | [["else", "if"], [value, [], condition]]:
            return [(value, [*tokenize(" ".join(marks)), *condition])]
        case ["if", "else"], [value, condition, default]:
            return [(value, [*tokenize("if"), *condition]), (default, tokenize("otherwise"))]
        case ["else"], [[], default] | [default, []]:
            return [(default, tokenize("otherwise"))]
    raise ValueError("a case is 'x if c', 'x else if c', 'x if c else y' or 'else x'")
