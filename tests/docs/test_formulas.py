"""Formulas of docstrings: which blocks are formulas, and the LaTeX that they become."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import purerl
from docs.generate.expressions import latex, tokenize
from docs.generate.formulas import is_formula, typeset
from docs.generate.modules import as_rst
from purerl.errors import InputError

MODULES = sorted(Path(purerl.__file__).parent.rglob("*.py"))


def _latex(text: str) -> str:
    return latex(tokenize(text))


def _rows(block: str) -> list[str]:
    first, *rows, last = typeset(block).splitlines()
    assert (first, last) == (r"\begin{aligned}", r"\end{aligned}")
    return [row.removesuffix(r" \\[0.3em]") for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # names
        ("A_i", r"A_{i}"),
        ("A'_it", r"A'_{it}"),
        ("old_logp_it", r"\mathrm{old\_logp}_{it}"),
        ("clip_low", r"\mathrm{clip\_low}"),
        ("mean_g", r"\mathrm{mean}_{g}"),
        ("mean_role", r"\mathrm{mean}_{\mathrm{role}}"),
        ("b_role", r"b_{\mathrm{role}}"),
        ("k3", r"k_{3}"),
        ("l_it", r"\ell_{it}"),
        ("dbar_i", r"\bar{d}_{i}"),
        ("loss", r"\mathrm{loss}"),
        ("float32", r"\mathrm{float32}"),
        # Greek letters
        ("lambda_", r"\lambda"),
        ("lambda_i", r"\lambda_{i}"),
        ("pi_it(v)^2", r"\pi_{it}(v)^{2}"),
        ("rho_clip", r"\mathrm{rho\_clip}"),
        # indices in braces
        ("V_{t+1}", r"V_{t + 1}"),
        ("G_{i,t+1}", r"G_{i,t + 1}"),
        ("sum_{j >= k} x_j", r"\sum_{j \ge k} x_{j}"),
        # numbers
        ("1e-6", r"10^{{-}6}"),
        ("0.95", r"0.95"),
        ("-.5", r"{-}.5"),
    ],
)
def test_symbols(text, expected):
    assert _latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A_i r_it", r"A_{i}\,r_{it}"),
        ("beta * D", r"\beta \cdot D"),
        ("hidden @ weight.T", r"\mathrm{hidden} \, \mathrm{weight}^{T}"),
        ("a - b", r"a - b"),
        ("-a b", r"{-}a\,b"),
        ("a -+ b", r"a \mp b"),
        ("w (1 - w)", r"w\,(1 - w)"),
        ("e_i^2", r"e_{i}^{2}"),
        ("2**41", r"2^{41}"),
        ("discount^(j - k)", r"\mathrm{discount}^{j - k}"),
        ("(a + b)^2", r"(a + b)^{2}"),
        ("a <= b < c", r"a \le b < c"),
        ("p_0 + ... + p_k", r"p_{0} + \dots + p_{k}"),
        ("KL(pi || ref)", r"\operatorname{KL}(\pi \parallel \mathrm{ref})"),
    ],
)
def test_operators(text, expected):
    assert _latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a / b", r"\dfrac{a}{b}"),
        ("1/2", r"\dfrac{1}{2}"),
        ("(s_i - mean_g) / (std_g + 1e-6)", r"\dfrac{s_{i} - \mathrm{mean}_{g}}{\mathrm{std}_{g} + 10^{{-}6}}"),
        # the numerator is the product before the slash, the denominator is one factor
        ("a b / c d", r"\dfrac{a\,b}{c}\,d"),
        ("a * b / c", r"\dfrac{a \cdot b}{c}"),
        ("a / b / c", r"\dfrac{\dfrac{a}{b}}{c}"),
        ("1/2 a / b", r"\dfrac{1}{2}\,\dfrac{a}{b}"),
        ("-a / b", r"{-}\dfrac{a}{b}"),
        ("a + b / c", r"a + \dfrac{b}{c}"),
        ("(a + b) c / d", r"\dfrac{(a + b)\,c}{d}"),
        ("a^2 / b^2", r"\dfrac{a^{2}}{b^{2}}"),
        ("z^2 / 4n^2", r"\dfrac{z^{2}}{4n^{2}}"),
        ("log p / 2", r"\dfrac{\log p}{2}"),
        # parentheses around a fraction are left out, unless they have an exponent
        ("(1 / rows) x", r"\dfrac{1}{\mathrm{rows}}\,x"),
        ("(a / b)^2", r"\left(\dfrac{a}{b}\right)^{2}"),
        # a sum applies to the whole product, so that a denominator belongs to its terms
        ("sum_t x_t / n_i", r"\sum_{t} \dfrac{x_{t}}{n_{i}}"),
        ("sum_g(n_j s_j) / sum_g(n_j)", r"\dfrac{\sum_{g}(n_{j}\,s_{j})}{\sum_{g}(n_{j})}"),
        # in a phrase, the operands of a slash are not clear
        ("variance of the shares / P", r"\text{variance of the}\ \mathrm{shares} \mathbin{/} P"),
        ("rows / rows of all groups", r"\mathrm{rows} \mathbin{/} \mathrm{rows}\ \text{of all groups}"),
        ("rows / all_rows", r"\dfrac{\mathrm{rows}}{\mathrm{all\_rows}}"),
        ("d logp / d z", r"\dfrac{\mathrm{d}\,\mathrm{logp}}{\mathrm{d}\,z}"),
    ],
)
def test_fractions(text, expected):
    assert _latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exp(x)", r"\exp(x)"),
        ("exp(a / b)", r"\exp\!\left(\dfrac{a}{b}\right)"),
        ("log p", r"\log p"),
        ("log sigmoid(beta * D)", r"\log \operatorname{sigmoid}(\beta \cdot D)"),
        ("clip(r, 1 - low_it, 2)", r"\operatorname{clip}(r, 1 - \mathrm{low}_{it}, 2)"),
        ("A_i clip(r)", r"A_{i} \operatorname{clip}(r)"),
        ("max(a, min(b, c))", r"\max(a, \min(b, c))"),
        ("max_g abs(s)", r"\max_{g} |s|"),
        ("mean_g(s - max_g)", r"\operatorname{mean}_{g}(s - \max_{g})"),
        ("k3(logp, ref_logp)", r"k_{3}(\mathrm{logp}, \mathrm{ref\_logp})"),
        ("sqrt(a / b)", r"\sqrt{\dfrac{a}{b}}"),
        ("floor(x / 2)", r"\left\lfloor \dfrac{x}{2}\right\rfloor "),
        ("C(n - 1, k)", r"\binom{n - 1}{k}"),
        ("z[token]", r"z[\mathrm{token}]"),
        ("|a - b| |c|", r"|a - b|\,|c|"),
        ("min {k: p_k > 0}", r"\min \{k\text{:}\ p_{k} > 0\}"),
    ],
)
def test_functions_and_parentheses(text, expected):
    assert _latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean over rows of x_i", r"\operatorname*{mean}_{\mathrm{rows}} x_{i}"),
        (
            "mean over rows of the sum over tokens of l_it",
            r"\operatorname*{mean}_{\mathrm{rows}} \sum_{\mathrm{tokens}} \ell_{it}",
        ),
        ("product over i = 1, ..., n of (1 - i)", r"\prod_{i = 1,\dots,n} (1 - i)"),
        # "of" means: of all terms that follow
        ("mean over rows of a + b", r"\operatorname*{mean}_{\mathrm{rows}} [a + b]"),
        ("mean over rows of -a", r"\operatorname*{mean}_{\mathrm{rows}} [{-}a]"),
        ("sum_i a + b", r"\sum_{i} a + b"),
        ("mean of s over the other rows", r"\text{mean of}\ s\ \text{over the other rows}"),
        ("max of s", r"\text{max of}\ s"),
    ],
)
def test_sums_and_means(text, expected):
    assert _latex(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the rows of one prompt", r"\text{the rows of one prompt}"),
        ("row i beats a row", r"\mathrm{row}\ i\ \text{beats a row}"),
        ("the row's cross-entropy", r"\text{the row's cross-entropy}"),
        ("pass@k", r"\text{pass@k}"),
        ("a = b, c = d", r"a = b,\quad c = d"),
        ("a, without gradient", r"a,\ \text{without gradient}"),
        ("g: the rows", r"g\text{:}\ \text{the rows}"),
        ("A is 0; then stop.", r"A\ \mathrm{is}\ 0;\ \text{then stop}.\ "),
    ],
)
def test_words_and_punctuation(text, expected):
    assert _latex(text) == expected


# --- statements --------------------------------------------------------------------------------------------------


def test_statements_are_aligned_at_their_first_relation():
    block = """
    A_i + V_i = B_i = C_i
    b        <- b - 1
    r_t      -= x
    keep g
    """
    assert _rows(block) == [
        r"A_{i} + V_{i} &= B_{i} = C_{i}",
        r"b &\leftarrow b - 1",
        r"r_{t} &\mathrel{-}= x",
        r"& \mathrm{keep}\ g",
    ]


def test_a_remark_follows_its_formula():
    assert _rows("    A = b       g: the rows of i") == [r"A &= b \qquad g\text{:}\ \text{the rows of}\ i"]
    assert _rows("    A = b,    c = d") == [r"A &= b,\quad c = d"]  # after a comma, the line continues


def test_an_indented_line_continues_the_statement():
    block = """
    q = a b
        + c        of the row
    r = q
    """
    assert _rows(block) == [r"q &= a\,b", r"&\quad {} + c \qquad \text{of the row}", "r &= q"]


CASES = r"w &= \begin{cases} 1 & \mathrm{if}\ A \ge 0 \\ x & \mathrm{otherwise} \end{cases}"


@pytest.mark.parametrize(
    "block",
    [
        "w = 1 if A >= 0, else x",
        "w = 1 where A >= 0, otherwise x",
        "w = 1 if A >= 0 else x",
        "w = 1 where A >= 0\n    x elsewhere",
        "w = 1    if A >= 0\n    x    else",
        "w = 1    if A >= 0\n    x    otherwise",
    ],
)
def test_cases(block):
    assert _rows(block) == [CASES]


def test_conditions_with_commas_and_over_two_lines():
    block = """
    w = 0    if a > 0, b > 0
        1    else if c > 0
             or d > 0
        2    else
    """
    [row] = _rows(block)
    assert row.removeprefix(r"w &= \begin{cases} ").removesuffix(r" \end{cases}").split(r" \\ ") == [
        r"0 & \mathrm{if}\ a > 0, b > 0",
        r"1 & \text{else if}\ c > 0\ \mathrm{or}\ d > 0",
        r"2 & \mathrm{otherwise}",
    ]


def test_a_single_case_has_no_brace():
    assert _rows("    A = b    if row i is correct") == [r"A &= b\quad \text{if row}\ i\ \text{is correct}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A = (b + c", "unexpected 'the end' after 'c'"),
        ("A = (b]", "'(' is not closed"),
        ("A = b +", "unexpected 'the end' after '+'"),
        ("A = b ? c", "unexpected '?' after 'b'"),
        ("G = r_i,t+1", "unexpected ',' after 'r_i'"),
        ("A = b c   -> d", "unexpected '>' after '-'"),
        ("A = C(n)", "unexpected ')' after 'n'"),
        ("A = x else y else z", "a case is"),
    ],
)
def test_a_line_that_cannot_be_parsed_is_refused(line, message):
    with pytest.raises(InputError) as error:
        typeset(f"    B = 1\n    {line}\n")
    assert message in str(error.value)
    assert f"got:  {line}\n" in str(error.value)


# --- blocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block",
    [
        "    loss = (1 / tokens) sum_it l_it",
        "    A_i    = s_i - mean_g         g: the rows of one prompt",
        "    keep g where the scores differ\n    A = s",
        "    c <- c - 1",
        "    |a - b| <= c",
        "    sum_it l_it / tokens",
        "    sum_it m_it l_it",
        "    reward_t - kl_reward_coef * k1_t",
    ],
)
def test_these_blocks_are_formulas(block):
    assert is_formula(block)


@pytest.mark.parametrize(
    "block",
    [
        "    token_mean    sum_it l_it / tokens    every token has the same weight",
        "    temperature   a number >= 0, or x = 1",
        "    group_centered_advantage       .75 -.25 -.25 -.25",
        "    column      start                now\n    row 0           . . a a a a",
        '    EXEMPTIONS = {"law": "reason"}',
        "    >>> x = 3",
        "    purerl train chat --set model=x",
        "    python -m purerl.testing.matrix > docs/reference/laws.md",
        "    def test_it() -> None:\n        check(build, text=text)",
        "    batch -> micro-batches -> logp",
        "    PurerlError\n    └── InputError",
    ],
)
def test_these_blocks_are_tables_or_code(block):
    assert not is_formula(block)


def _docstrings(path: Path) -> list[str]:
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    nodes = [node for node in tree if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return [docstring for node in nodes if (docstring := ast.get_docstring(node))]


@pytest.mark.slow
def test_every_formula_of_the_package_is_typeset():
    converted = [
        (path, "\n".join(as_rst(docstring.splitlines()))) for path in MODULES for docstring in _docstrings(path)
    ]
    formulas = [
        (path.relative_to(MODULES[0].parent), formula)
        for path, rst in converted
        for formula in re.findall(r"\\begin\{aligned\}.*?\\end\{aligned\}", rst, re.DOTALL)
    ]
    assert len(formulas) > 70
    wrong = [f"{path}: {formula}" for path, formula in formulas if not _is_balanced(formula)]
    assert not wrong, "\n".join(["", *wrong])
    assert sum(".. math::" in rst for _, rst in converted) > 70


def _is_balanced(formula: str) -> bool:
    escaped = re.sub(r"\\[{}]", "", formula)
    return escaped.count("{") == escaped.count("}") and (
        formula.count(r"\left") == formula.count(r"\right") + formula.count(r"\leftarrow")
    )
