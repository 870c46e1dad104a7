"""Units and meanings of metrics, read from the tables of docs/reference/metrics.md.

purerl/monitoring/metrics.md is a symbolic link to that page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

__all__ = ["RESERVED_PREFIXES", "documented_names", "meanings"]

RESERVED_PREFIXES = ("eval/", "validation/", "time/")
"""Prefixes of the metrics that purerl adds to a record after callbacks have seen it: no callback may log them."""

_GENERALIZATIONS = (
    (r"^eval/(.+/)?logged/.*", "eval/logged/<name>"),
    (r"^eval/(.+/)?reward/.*", "eval/reward/<name>"),
    (r"^eval/.+/", "eval/"),  # eval/<data set>/accuracy
    (r"@\d+$", "@<k>"),
    (r"^(\w+/loss)/.*", r"\1/<term>"),
    (r"^(critic|reward_model|validation)/", "policy/"),
    (r"^reward/.*", "reward/<name>"),
    (r"^logged/.*", "logged/<name>"),
)


def meanings(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the unit and meaning of each metric in `names`. Metrics that are not documented are left out.

    >>> meanings(["rollout/tokens", "my/own"])
    {'rollout/tokens': ('tokens', 'Action tokens of all sampled completions.')}
    """
    table = _read_table()
    matches = {name: next((key for key in _table_keys(name) if key in table), None) for name in names}
    return {name: table[key] for name, key in matches.items() if key}


def documented_names() -> list[str]:
    """The names in the tables, without those that stand for several metrics, such as ``reward/<name>``."""
    return [name for name in _read_table() if "/" in name and "<" not in name and not name.endswith("...")]


def _table_keys(name: str) -> list[str]:
    """The names under which a metric may be documented: its own, then more and more general ones."""
    keys = [name]
    for pattern, replacement in _GENERALIZATIONS:
        keys.append(re.sub(pattern, replacement, keys[-1]))
    return keys


@cache
def _read_table() -> dict[str, tuple[str, str]]:
    text = files("purerl.monitoring").joinpath("metrics.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:4] for line in text.splitlines() if line.startswith("| `")]
    return {
        name: (unit.strip(), meaning.strip().replace(r"\|", "|"))
        for names, unit, meaning in rows
        for name in re.findall("`(.+?)`", names)
    }
