r"""Normalization of the text of an answer: Unicode becomes LaTeX, and what only changes its appearance is removed."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["clean"]

_LATEX = {
    **dict.fromkeys("\u2212\u2013\u2014\u2010\ufe63", "-"),
    **dict.fromkeys("\u201c\u201d\u2018", ""),
    **dict.fromkeys("\u00b7\u22c5\u2219", r"\cdot "),
    **dict.fromkeys("\u2264\u2a7d\u2266", r"\le "),
    **dict.fromkeys("\u2265\u2a7e\u2267", r"\ge "),
    **dict.fromkeys("\u2200\u2203", r"\unknown "),
    "\u00d7": r"\times ",
    "\u00f7": r"\div ",
    "\u00b1": r"\pm ",
    "\u2213": r"\mp ",
    "\u2260": r"\ne ",
    "\u2248": r"\approx ",
    "\u2261": r"\equiv ",
    "\u221a": r"\sqrt ",
    "\u221b": r"\sqrt[3]",
    "\u221e": r"\infty ",
    "\u2208": r"\in ",
    "\u222a": r"\cup ",
    "\u2229": r"\cap ",
    "\u2205": r"\emptyset ",
    "\u211d": r"\mathbb{R}",
    "\u2124": r"\mathbb{Z}",
    "\u2115": r"\mathbb{N}",
    "\u211a": r"\mathbb{Q}",
    "\u2216": r"\setminus ",
    "\u27e8": r"\langle ",
    "\u27e9": r"\rangle ",
    "\u2220": r"\angle ",
    "\u00b0": r"\degree ",
    "\u20ac": r"\euro ",
    "\u00a3": r"\pounds ",
    "\u00a5": r"\yen ",
    "\u2019": "'",
    "\u2032": "'",
    "\u3002": ".",
    "\u3001": ",",
}
"""LaTeX for characters outside of ASCII."""
_GREEK = {
    chr(code): f"\\{name.rsplit(' ', 1)[1].lower().replace('lamda', 'lambda')} "
    for code in range(0x3B1, 0x3CA)
    if (name := unicodedata.name(chr(code))).startswith("GREEK SMALL LETTER") and "FINAL" not in name
}
_LETTERS = str.maketrans(_LATEX | _GREEK)
_SUPERSCRIPTS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207f"
_SUPERSCRIPT_DIGITS = str.maketrans(_SUPERSCRIPTS, "0123456789-n")
_SUBSCRIPT_DIGITS = str.maketrans({chr(0x2080 + digit): str(digit) for digit in range(10)})
_SCRIPTS = (
    (re.compile(f"[{_SUPERSCRIPTS}]+"), lambda match: f"^{{{match[0].translate(_SUPERSCRIPT_DIGITS)}}}"),
    (re.compile("[\u2080-\u2089]+"), lambda match: f"_{{{match[0].translate(_SUBSCRIPT_DIGITS)}}}"),
    (re.compile("[\u00bc-\u00be\u2150-\u215e]"), lambda match: _fraction(match[0])),
)

_EXCEPT = r"(?:except|other\s+than)(?:\s+for)?\s*"
_APPEARANCE = (
    (r"\\(?:left|right)\s*\.", ""),
    (r"\\left\s*(?:\||\\[lr]?vert(?![a-zA-Z]))", r"\\lvert "),
    (r"\\right\s*(?:\||\\[lr]?vert(?![a-zA-Z]))", r"\\rvert "),
    (
        r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it)(?![a-zA-Z])",
        "",
    ),
    (r"\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|allowbreak|nonumber|strut|mathstrut)(?![a-zA-Z])", ""),
    (r"\\(?:textcolor|color)\s*\{[^{}]*\}", ""),
    (r"\\(?:hspace|vspace|phantom|hphantom|vphantom|label|tag)\*?\s*\{[^{}]*\}", " "),
    (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\"),
    (r"(?<!\\)\\[()\[\]]|\\ensuremath(?![a-zA-Z])", " "),
    (r"(?<=\d)(?:\{,\}|,\\!)\s*(?=\d{3}(?!\d))", ""),
    (r"(?<![a-zA-Z}\]^_\\])\{\s*\}", ""),
    (r"\\!|[`\"\u200b\ufeff]", ""),
    (r"(?<!\\)\\(?:[,;: >/]|q?quad|thinspace(?![a-zA-Z])|\s)|~", " "),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?:s)?(?![a-zA-Z])", r"\\degree "),
    (r"(?<=\d)\s*\^?\{?\s*\\(?:text|mathrm|textrm)\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", ""),
    (r"(?<=\d)(?:st|nd|rd|th)(?![a-zA-Z])", ""),
    *(
        (rf"(?<=\d)\s*(\\(?:text|mathrm)\s*\{{)?\s*{name}(?![a-zA-Z])", rf" \\times 10^{{{exponent}}} \1")
        for name, exponent in (("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
    ),
    (r":=", "="),
    *(
        (rf"^\s*{start}\s*(?:all|any)\s+real(?:s|\s+numbers?)\s+{_EXCEPT}{end}$", r"\\mathbb{R} \\setminus \\{\1\\}")
        for start, end in ((r"\\text\{", r"\}\s*(?:x\s*=)?(.+)"), (r"(?:\\text\{)?", r"(?:x\s*=)?([^{}]+?)\}?"))
    ),
    (r"\\mathbb\s*([RZNQC])(?![a-zA-Z])", r"\\mathbb{\1}"),
    (r"\\not\s*=|\\not\s*\\eq(?![a-zA-Z])", r"\\ne "),
    (r"\\not\s*\\in(?![a-zA-Z])", r"\\notin "),
)
_RULES = tuple((re.compile(pattern), replacement) for pattern, replacement in _APPEARANCE)
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
_INTRODUCTION = re.compile(
    r"(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is|:)|(?:option|choice)(?=\s+\(?[A-Z]\)?$))[\s:]*", re.IGNORECASE
)
_ALIGNED = re.compile(
    r"\\begin\{(aligned|align\*?|gathered|split)\}((?:(?!\\begin).)*?)(?:\\\\\s*)?\\end\{\1\}", re.DOTALL
)
_NEXT_EQUATION = re.compile(r"(?<=[\w)}\]])\s*(?:\\\\|\\q?quad)\s+(?=[A-Za-z](?:_\w)?\s*=)")
_TEXT_PERIOD = re.compile(r"\\text\{\s*[.,;]?\s*\}")


def clean(text: str) -> str:
    r"""Normalize the text of an answer.

    >>> clean(r"$\left(1,\!000\right)$."), clean("x² ≤½"), clean(r"0.1\overline{6}")
    ('(1000)', 'x^{2} \\le {\\frac{1}{2}}', '{\\frac{15}{90}}')
    """
    text = _ALIGNED.sub(lambda match: re.sub(r"\\\\", ", ", match[2].replace("&", "")), text)
    if r"\begin" not in text:
        text = _NEXT_EQUATION.sub(", ", text).replace("\\\\", "\\")  # escaped twice; there are no rows
    text = text if text.isascii() else _to_ascii(text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _TEXT_PERIOD.sub(" ", _REPEATING.sub(_repeating, _remove_dollars(text)))
    return _strip(_INTRODUCTION.sub("", _strip(_unwrap_text(_strip(text))), count=1))


def _to_ascii(text: str) -> str:
    """`text` with LaTeX in place of the characters that have an equivalent."""
    for pattern, script in _SCRIPTS:
        text = pattern.sub(script, text)
    return "".join(map(_narrow, text)).translate(_LETTERS)


def _narrow(character: str) -> str:
    """Full-width characters and spaces as those of ASCII."""
    is_wide = unicodedata.east_asian_width(character) in ("F", "W") and character not in "\u3001\u3002"
    return unicodedata.normalize("NFKC", character) if is_wide or character.isspace() else character


def _fraction(character: str) -> str:
    numerator, denominator = unicodedata.normalize("NFKC", character).split("\u2044")
    return rf"{{\frac{{{numerator}}}{{{denominator}}}}}"


def _repeating(match: re.Match[str]) -> str:
    r"""The fraction of a repeating decimal such as ``0.1\overline{6}``."""
    integer, digits, period = match.groups()
    value = int(integer + digits + period) - int(integer + digits or "0")
    return rf"{{\frac{{{value}}}{{{10 ** len(digits) * (10 ** len(period) - 1)}}}}}"


def _remove_dollars(text: str) -> str:
    """Remove the signs around formulas. A single one before a number is a currency."""
    count = len(re.findall(r"(?<!\\)\$", text))
    return re.sub(r"(?<!\\)\$", r"\\$" if count == 1 else " ", text)


def _unwrap_text(text: str) -> str:
    r"""The content of ``\text{...}`` if that is the complete text of one sentence with an introduction."""
    match = re.fullmatch(
        r"\\(?:text|textbf|mathbf|mathrm|mbox|textrm)\{((?:The|Answer|Option|Choice)\b[^{}]*)\}(.*)", text, re.DOTALL
    )
    return f"{match[1]} {match[2]}" if match else text


def _strip(text: str) -> str:
    """Remove spaces, emphasis of Markdown, and final punctuation."""
    text = text.strip()
    if len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text[2:-2]
    return text.strip().rstrip(" .,;").lstrip()
