"""The table of laws and algorithms, as a page of the documentation.

    python -m purerl.testing.matrix > docs/reference/laws.md

The table shows which laws each algorithm must satisfy. The property tests check that it does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from purerl.plugins import find, names
from purerl.testing.check import exemptions
from purerl.testing.laws import LAWS

__all__ = ["matrix"]


def matrix() -> str:
    """The page in Markdown: the laws, the table of algorithms and laws, and the exemptions with their reasons."""
    modules = {name: find("algorithm", name) for name in names("algorithm")}
    numbers = range(1, len(LAWS) + 1)
    laws = [f"{k}. `{law.__name__}`: {' '.join((law.__doc__ or '').split())}" for k, law in enumerate(LAWS, 1)]
    head = [_row("algorithm", map(str, numbers)), "|---" * (len(LAWS) + 1) + "|"]
    rows = [_row(name, _cells(module)) for name, module in modules.items()]
    reasons = [
        f"- {name}, `{law}`: {reason}."
        for name, module in modules.items()
        for law, reason in exemptions(module).items()
    ]
    sections = (
        *("# Laws of algorithms", "", _INTRODUCTION, ""),
        *("## The laws", "", *laws, ""),
        *("## Which law each algorithm satisfies", "", *head, *rows, ""),
        *("## Exemptions", "", *reasons),
    )
    return "\n".join(sections) + "\n"


_INTRODUCTION = """\
A law is a property that every algorithm must have, whatever it computes. Property-based tests (`nox -s laws`) check
every law for every algorithm, with each optional term enabled in turn, and for random combinations of algorithms and
[modifiers](../how-to/modifiers.md). They test each law and algorithm on four batches, always the same: one on which
every law is known to detect broken algorithms, another large one, one without action tokens, and a small one.
Combinations and presets, whose parts are tested in algorithms too, are tested on the first and the last. With
`PURERL_PROFILE=thorough`, Hypothesis generates two hundred more. Slow laws whose result hardly depends on the batch are
tested on one batch.

The message of a law that fails has the largest difference, the law in words, what often breaks it, and the batch as a
table: the rows and tokens with the fields that the algorithm reads, in which a * marks the difference.
`check_algorithm` removes the rows without which the law still fails.

If a law cannot hold for an algorithm, its module declares an exemption with a reason. The tests then search for a batch
that violates the law, and fail if they find none. Another test checks that every setting of every algorithm has an
effect (`check_settings`). A law about rewards holds for every algorithm that does not read rewards.

The laws do not show that an algorithm is the intended one. On policy they determine its gradient from its advantage.
Off policy, another clipping rule, another reduction or another KL estimator satisfies the same laws. Golden tests
(`tests/golden/`) and the exact enumeration of a small policy (`property_tests/test_enumeration.py`) test these parts.

`python -m purerl.testing.matrix` generates this page. A test fails if the page is out of date."""


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _cells(module: object) -> list[str]:
    return ["exempt" if law.__name__ in exemptions(module) else "✓" for law in LAWS]


if __name__ == "__main__":
    sys.stdout.write(matrix())
