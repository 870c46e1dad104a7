"""Names and prose use the standard terms of the field, in American spelling.

Docstrings are noun phrases or imperatives. Old names of settings and metrics are allowed only in the tables that map
them to new names, in the tests of these tables, and in the changelog.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from purerl.config.aliases import read_renamed

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ("CHANGELOG.md", "purerl/config/aliases/", "tests/config/test_aliases.py", "tests/library/test_vocabulary.py")
TEXT = (".py", ".md", ".toml", ".cfg", ".txt", ".html", ".js", ".css", ".yml", ".yaml")

# A word that had a meaning of its own in this library, and the standard term.
WORDS = {
    r"(un|over)?heard": "logged, or a callback",
    r"exam(s|in(e|es|ed|ing))?": "evaluation, evaluate",
    r"verdicts?": "reward result",
    r"judg(ed|ing)": "score, scored, reward runner",  # a judge is a model that is asked for a score
    r"mend(s|ed|ing)?": "fix",
    r"seams?": "interface",
    r"storeys?": "layer",
    r"likeliest": "greedy decoding (argmax)",
    r"weigh(s|ed)?": "weight, weighted",
    r"refills?": "resampling rounds",
    r"truth values?": "boolean",
    r"whole numbers?": "integer",
    r"goes on|going on|go on with": "resumes",
    r"leaves with": "exits with status",
    r"lest|whoever|thereof|whence|hence|nought|naught": "a plain word",
}
# One pattern for all words, because the text of all files is long.
ANY_WORD = rf"(?<![\w/])({'|'.join(WORDS)})(?![\w/])"
# Beginnings of words in British spelling.
BRITISH = (
    r"behaviour|colour|favour|neighbour|honour|centre|catalogue|judgement|labell|modell(?!e)|signall|learnt|spelt"
    r"|normalis|optimis|initialis|randomis|serialis|tokenis|synchronis|summaris|recognis|organis|generalis|grey"
)

# First words of a docstring that defines a thing by a relative clause, instead of a noun phrase or an imperative.
RELATIVE = re.compile(r"\W*(What|Where|Which|How)\b")
QUOTED = re.compile(rf"[\"']{RELATIVE.pattern}")  # most files have no such string, and are not parsed


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The text of each file, by its name."""
    command = ["git", "ls-files"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [name for name in tracked if name.endswith(TEXT) and not name.startswith(ALLOWED)]
    existing = [name for name in names if (ROOT / name).exists()]  # not in the middle of a move
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in existing}


@pytest.fixture(scope="module")
def lower(texts: dict[str, str]) -> dict[str, str]:
    """The same in lower case: patterns that ignore the case take three times as long."""
    return {name: text.lower() for name, text in texts.items()}


def _matches(pattern: str, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """(match, FILE:LINE: TEXT) of everything that matches `pattern`."""
    compiled, found = re.compile(pattern), []
    for name, text in texts.items():
        for match in compiled.finditer(text):
            number = text.count("\n", 0, match.start())
            found.append((match[0], f"{name}:{number + 1}: {text.splitlines()[number].strip()}"))
    return found


def _none(lines: list[str]) -> None:
    """Fail with all of `lines`: pytest shortens a list."""
    assert not lines, "\n".join(["", *lines])


def test_only_standard_terms_are_used(lower: dict[str, str]) -> None:
    found = _matches(ANY_WORD, lower)
    terms = [next(term for word, term in WORDS.items() if re.fullmatch(word, match)) for match, _ in found]
    _none([f"{line} (write: {term})" for (_, line), term in zip(found, terms, strict=True)])


@pytest.mark.parametrize("word", ["overheard", "examining", "seam", "truth values", "goes on", "go on with", "whence"])
def test_each_word_is_found(word: str) -> None:
    text = {"a.py": f"b\n  it is {word}."}
    assert _matches(ANY_WORD, text) == [(word, f"a.py:2: it is {word}.")]


def test_spelling_is_american(lower: dict[str, str]) -> None:
    _none([line for _, line in _matches(rf"(?<![a-z])({BRITISH})", lower)])


def test_old_names_of_settings_and_metrics_are_not_used(texts: dict[str, str]) -> None:
    dotted = [re.escape(name) for name in read_renamed() if "." in name or "/" in name]
    plain = [re.escape(name) for name in read_renamed() if "." not in name and "/" not in name]
    patterns = rf"(?<![\w./])({'|'.join(dotted)})(?![\w/.])", rf"--set '?({'|'.join(plain)})="
    _none([line for pattern in patterns for _, line in _matches(pattern, texts)])


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the strings that are statements: docstrings, and descriptions of constants below them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _relative(name: str, source: str) -> list[str]:
    """FILE:LINE: TEXT of each docstring of `source` that begins with one of the words of `RELATIVE`."""
    strings = _docstrings(source) if QUOTED.search(source) else ()
    found = [(line, text) for line, text in strings if RELATIVE.match(text)]
    return [f"{name}:{line}: {text.splitlines()[0]}" for line, text in found]


def test_no_docstring_begins_with_a_relative_clause() -> None:
    command = ["git", "ls-files", "*.py"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [name for name in tracked if (ROOT / name).exists()]
    assert names
    _none([line for name in names for line in _relative(name, (ROOT / name).read_text(encoding="utf-8"))])


@pytest.mark.parametrize("word", ["What", "Where", "Which", "How"])
@pytest.mark.parametrize("code", ["'{}'", "def f():\n    '{}'", "class A:\n    '{}'", "a = 1\n'{}'"])
def test_each_relative_clause_is_found(word: str, code: str) -> None:
    assert len(_relative("a.py", code.format(f"{word} a model reads."))) == 1


@pytest.mark.parametrize("text", ["The way a model reads.", "Whether a model reads.", "However", "Whatever"])
def test_other_docstrings_are_accepted(text: str) -> None:
    assert _relative("a.py", f"x = 'What is data.'\n'{text}'") == []
