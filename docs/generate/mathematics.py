"""The page of the answers that rewards for mathematics accept, generated from the table that their tests read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.generate.markdown import table

__all__ = ["page", "pages"]

_TABLE = Path(__file__).parents[2] / "tests" / "rewards" / "math_answers.toml"
_INTRODUCTION = """# Answers in mathematics

What [`purerl.rewards.math`](../../how-to/rewards.md#mathematics) accepts, and what it does not. Each row is a test.
The answers are contents of a `\\boxed{{...}}`, scored by `math`; in sections with another function they are complete
completions.
The table has {accepted:,} answers that are accepted and {rejected:,} that are not, for {truths} ground truths. The
symbol ⏎ is a line break."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the page."""
    yield "answers", page(tomllib.loads(_TABLE.read_text(encoding="utf-8"))["kinds"])


def page(kinds: Sequence[dict[str, Any]]) -> str:
    """The Markdown of the page."""
    rows = [row for kind in kinds for row in kind["rows"]]
    counts = {key: sum(len(row[key]) for row in rows) for key in ("accepted", "rejected")}
    sections = (f"## {kind['name']}\n\n{_function(kind)}{_rows(kind)}" for kind in kinds)
    return "\n\n".join([_INTRODUCTION.format(truths=len(rows), **counts), *sections]) + "\n"


def _function(kind: dict[str, Any]) -> str:
    """The reward that scores the answers, if it is not the function `math`."""
    settings = {"kind": "math", **kind["settings"]} if "settings" in kind else {}
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    reward = f"{{{text}}}" if text else kind.get("reward")
    return f"Scored by `{reward}`.\n\n" if reward else ""


def _rows(kind: dict[str, Any]) -> str:
    cells = (
        [_code(row["truth"]), *(", ".join(map(_code, row[key])) for key in ("accepted", "rejected"))]
        for row in kind["rows"]
    )
    return table(["ground truth", "accepted", "not accepted"], cells)


def _code(text: str) -> str:
    """`text` as code. Two backticks are around a text that contains one."""
    if not text:
        return "*nothing*"
    text = text.replace("\n", "⏎")
    fence = "``" if "`" in text else "`"
    space = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{space}{text}{space}{fence}"
