"""The matrix of laws by algorithms, as a page of the documentation.

    python -m purerl.testing.matrix > docs/laws.md

It says which law each algorithm is held to; the property tests hold it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from purerl.plugins import find, names
from purerl.testing.check import exemptions
from purerl.testing.laws import LAWS

__all__ = ["matrix"]


def matrix() -> str:
    """The laws, numbered, with what each says; the algorithms by laws; and the exemptions with their reasons."""
    modules = {name: find("algorithm", name) for name in names("algorithm")}
    numbers = range(1, len(LAWS) + 1)
    laws = [f"{k}. `{law.__name__}`: {_first_sentence(law.__doc__)}" for k, law in zip(numbers, LAWS, strict=True)]
    head = [_row("algorithm", map(str, numbers)), "|---" * (len(LAWS) + 1) + "|"]
    rows = [_row(name, _cells(module)) for name, module in modules.items()]
    reasons = [f"- {name}, `{law}`: {why}." for name, one in modules.items() for law, why in exemptions(one).items()]
    parts = ("# Laws by algorithms", "", _INTRODUCTION, "", *laws, "", *head, *rows, "", "Exempt:", "", *reasons)
    return "\n".join(parts) + "\n"


_INTRODUCTION = """\
Every algorithm, with each of its optional terms switched on, is held to every law: in `nox -s laws` on two batches on
which each mutant shows and on two that Hypothesis draws, or on one where that is enough; on two hundred with
`PURERL_PROFILE=thorough`. Where a law cannot hold, the module says why, and the tests look for a batch that breaks it.
Beside these laws, every setting of every algorithm has an effect (`check_settings`). A law about rewards has nothing to
compare where an algorithm reads none.

The laws say what must be so whatever an algorithm is for. They do not say that it is the one that was meant: on policy
they know its gradient from its advantage, but another clip, another reduction or another divergence is lawful too. That
takes golden tests and an enumeration of all that can be sampled, as `tests/golden/` and `property_tests/` have them.

This page is made by `python -m purerl.testing.matrix`; a test fails when it is stale."""


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _cells(module: object) -> list[str]:
    return ["exempt" if law.__name__ in exemptions(module) else "✓" for law in LAWS]


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.write(matrix())
