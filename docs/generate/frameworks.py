"""The table of algorithms that run inside other frameworks, and the reasons why others do not."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate.markdown import table
from purerl.adapters.frameworks.availability import (
    PRIME_RL,
    SKYRL,
    TINKER,
    TRL,
    VERL,
    estimator_refusals,
    loss_refusals,
    refusals,
)
from purerl.adapters.frameworks.compose import compose
from purerl.algos.algebra import Algorithm
from purerl.composition import build_algorithm
from purerl.errors import ConfigError
from purerl.plugins import names

__all__ = ["availability", "pages"]

COLUMNS = ("verl: advantages", "verl: loss", "TRL", "tinker", "prime-rl: loss", "SkyRL, slime: advantages")
"""What an algorithm can run as."""


def pages() -> Iterator[tuple[str, str]]:
    """(name, Markdown) of the tables, which docs/how-to/frameworks.md includes."""
    found = {name: availability(name) for name in names("algorithm")}
    rows = [[_linked(name), *("no" if reasons else "yes" for reasons in parts)] for name, parts in found.items()]
    for row, name in zip(rows, found, strict=True):
        if row[5] == "no" and not _with_bypass(name):
            row[5] = "with `bypass`"
    counts = ["**sum**", *(str(sum(not parts[column] for parts in found.values())) for column in range(len(COLUMNS)))]
    why = [
        [_linked(name), "; ".join(parts[0]), "; ".join(parts[1]), "; ".join(parts[2])]
        for name, parts in found.items()
        if any(parts[:3])
    ]
    head = ["algorithm", "verl: advantages", "verl: loss", "TRL"]
    yield "table", f"{table(['algorithm', *COLUMNS], [*rows, counts])}\n\nWhy not:\n\n{table(head, why)}\n"


def availability(name: str) -> tuple[list[str], ...]:
    """Why the algorithm `name` cannot run as each of `COLUMNS`; an empty list if it can."""
    algorithm = build_algorithm(compose(name))
    return (
        [*estimator_refusals(algorithm, VERL)],
        [*loss_refusals(algorithm, VERL)],
        [*refusals(algorithm, TRL)],
        [*refusals(algorithm, TINKER)],
        [*loss_refusals(algorithm, PRIME_RL)],
        [*estimator_refusals(algorithm, SKYRL)],
    )


def _with_bypass(name: str) -> list[str]:
    """Why the loss of `name` with the modifier `bypass` cannot run in prime-rl."""
    try:
        algorithm: Algorithm = build_algorithm(compose(name, ["bypass"]))
    except ConfigError as error:
        return [str(error)]
    return [*loss_refusals(algorithm, PRIME_RL)]


def _linked(name: str) -> str:
    return f"[{name}](../reference/algorithms/{name}.md)"
