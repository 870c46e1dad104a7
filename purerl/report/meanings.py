"""What metrics mean: the table of docs/metrics.md, which this folder has a link to, for the page to show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

__all__ = ["meanings"]


def meanings(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Unit and meaning of those of `names` that are explained.

    >>> meanings(["eval/reward", "my/own"])
    {'eval/reward': ('reward', 'mean reward of those completions')}
    """
    table = _table()
    found = {name: next((table[key] for key in _keys(name) if key in table), None) for name in names}
    return {name: meaning for name, meaning in found.items() if meaning}


def _keys(name: str) -> tuple[str, ...]:
    """Where `name` may be explained: by itself, as one of a kind, or as the policy's metric that the critic has too."""
    kind = re.sub(r"^(\w+/loss)/.*", r"\1/<term>", re.sub(r"^reward/.*", "reward/<name>", name))
    return name, kind, re.sub("^critic/", "policy/", kind)


@cache
def _table() -> dict[str, tuple[str, str]]:
    text = files("purerl.report").joinpath("assets/metrics.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:4] for line in text.splitlines() if line.startswith("| `")]
    return {
        name: (unit.strip(), meaning.strip().replace(r"\|", "|"))
        for names, unit, meaning in rows
        for name in re.findall("`(.+?)`", names)
    }
