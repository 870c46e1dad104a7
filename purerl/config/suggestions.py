"""The remedy for an unknown setting or metric: the setting and the value that are meant, if this is certain enough.

These are asked in order:

1. the names of earlier versions of purerl, and the names of TRL, verl and peft, in `purerl.config.aliases.remedies`;
2. the settings beside it and those of the same name in another section, if they are similar.

A name is similar if its last part and its whole dotted name are (`purerl.errors.similar`). Otherwise nothing is
suggested.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from attrs import NOTHING

from purerl.config.aliases.remedies import remedy
from purerl.errors import similar

__all__ = ["suggestion"]

_MAX_LISTED = 12


def suggestion(
    key: str,
    value: Any = NOTHING,
    *,
    name: str = "",
    known: Collection[str] = (),
    elsewhere: Iterable[str] = (),
    line: str = "",
) -> str | None:
    """The remedy for the unknown setting or metric `key`; None if nothing is certain enough.

    value      the value that was set; then the remedy has the value to write, if it is known
    name       the part of `key` that is unknown
    known      the names that it may have
    elsewhere  dotted keys of settings in other sections
    line       what to write in place of a setting of another library, if it is known

    >>> suggestion("examples")
    "it is called 'batch_size' here (it was 'examples')"
    >>> suggestion("trainer.num_generations", 8)  # doctest: +ELLIPSIS
    "TRL's 'num_generations' is 'rollout.samples_per_prompt' here. ..."
    >>> suggestion("trainer.sed", 8, name="sed", known=["seed", "size"])
    "did you mean 'seed'?"
    """
    if found := remedy(key, value, line):
        return found
    same = [setting for setting in elsewhere if setting.rpartition(".")[2] == name]
    if len(same) == 1:
        return f"did you mean {same[0]!r}?"
    if name and (near := similar(name, known)):
        return f"did you mean {near!r}?"
    return "one of: " + ", ".join(sorted(known)) if 0 < len(known) <= _MAX_LISTED else None
