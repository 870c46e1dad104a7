"""Names and prose use the standard terms of the field, in American spelling.

Old names of settings and metrics are allowed only in the tables that map them to new names, in the tests of these
tables, and in the changelog.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from purerl.aliases import read_renamed

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ("CHANGELOG.md", "purerl/aliases/", "tests/config/test_aliases.py", "tests/library/test_vocabulary.py")
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
# Beginnings of words in British spelling.
BRITISH = (
    r"behaviour|colour|favour|neighbour|honour|centre|catalogue|judgement|labell|modell(?!e)|signall|learnt|spelt"
    r"|normalis|optimis|initialis|randomis|serialis|tokenis|synchronis|summaris|recognis|organis|generalis|grey"
)


def _files() -> list[str]:
    command = ["git", "ls-files"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in tracked if name.endswith(TEXT) and not name.startswith(ALLOWED)]


def _matches(pattern: str) -> list[str]:
    """FILE:LINE: TEXT of every line that contains `pattern`."""
    compiled, found = re.compile(pattern), []
    for name in _files():
        path = ROOT / name
        if path.exists():  # not in the middle of a move
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [f"{name}:{k}: {line.strip()}" for k, line in enumerate(lines, 1) if compiled.search(line)]
    return found


@pytest.mark.parametrize(("word", "term"), WORDS.items())
def test_only_standard_terms_are_used(word: str, term: str) -> None:
    assert _matches(rf"(?i)(?<![\w/])({word})(?![\w/])") == [], f"write: {term}"


def test_spelling_is_american() -> None:
    assert _matches(rf"(?i)(?<![a-z])({BRITISH})") == []


def test_old_names_of_settings_and_metrics_are_not_used() -> None:
    dotted = [re.escape(name) for name in read_renamed() if "." in name or "/" in name]
    plain = [re.escape(name) for name in read_renamed() if "." not in name and "/" not in name]
    assert _matches(rf"(?<![\w./])({'|'.join(dotted)})(?![\w/.])") == []
    assert _matches(rf"--set '?({'|'.join(plain)})=") == []
