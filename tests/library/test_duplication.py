"""No algorithm repeats the text of another one: an algorithm that is another one with changes is written as such.

The similarity of two modules is the fraction of their lines, docstrings included, that they have in the same order.
Modules of different algorithms share a skeleton: imports, headings, the class of settings and its clip offsets. The
loss, the advantage and their explanation differ, and are at least half of a module. A module that shares two thirds of
its lines repeats more than the skeleton: gspo and luspo, which differ in one reduction, once shared 76 %, and dppo and
dppo_kl, which differ in one divergence, 86 %.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

from purerl.plugins import find, names

MAX_SIMILARITY = 2 / 3


def _similarity(first: list[str], second: list[str]) -> float:
    """The fraction of lines that both have in the same order; an upper bound of it, if this is small enough."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    bound = matcher.quick_ratio()
    return bound if bound <= MAX_SIMILARITY else matcher.ratio()


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


TEXTS = {name: Path(find("algorithm", name).__file__).read_text(encoding="utf-8") for name in names("algorithm")}


def test_algorithms_do_not_repeat_each_other() -> None:
    lines = {name: _lines(text) for name, text in TEXTS.items()}
    similar = {pair: _similarity(lines[pair[0]], lines[pair[1]]) for pair in combinations(lines, 2)}
    repeated = {pair: round(value, 2) for pair, value in similar.items() if value > MAX_SIMILARITY}
    assert repeated == {}, "write one as the other with modifiers: a function `composition`, as in luspo"


def test_copy_with_another_reduction_is_detected() -> None:
    copy = TEXTS["grpo"].replace("GRPO", "TRPO").replace("sequence_mean_of_token_mean", "token_mean")
    assert copy != TEXTS["grpo"]
    assert _similarity(_lines(copy), _lines(TEXTS["grpo"])) > MAX_SIMILARITY
    assert _similarity(_lines(TEXTS["ppo"]), _lines(TEXTS["grpo"])) < MAX_SIMILARITY
