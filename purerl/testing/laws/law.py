"""The type of a law, the message of a law that fails, and functions that the laws share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from textwrap import wrap

from tensordict import TensorDict
from torch import Tensor

from purerl.algos.algebra import Algorithm
from purerl.testing.batches import fields_of
from purerl.testing.outcome import Outcome, first_difference
from purerl.testing.table import batch_table

__all__ = ["Law", "ViolationError", "assert_same", "law", "map_rows"]

Law = Callable[[Algorithm, TensorDict], None]

_WIDTH = 110
"""Characters of a line of text in a message."""


class ViolationError(AssertionError):
    """An AssertionError at a `position` of the batch: a row, or a row and a token. It is empty if there is none."""

    def __init__(self, message: str, position: tuple[int, ...] = ()):
        super().__init__(message)
        self.position = position


def law(function: Law) -> Law:
    """Decorate a law: any exception becomes an AssertionError with a message that can be read without the code.

    It has the name of the law and what was found, the law in words, its common violations, and the batch, as a table of
    the fields that the algorithm reads. The docstring of `function` is its source: the law, then "Common violations:".
    An algorithm that crashes on a batch violates the law.
    """

    @functools.wraps(function)
    def named(algorithm: Algorithm, batch: TensorDict) -> None:
        try:
            function(algorithm, batch)
        except AssertionError as error:
            raise AssertionError(_message(function, str(error), algorithm, batch, error)) from error
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise AssertionError(_message(function, found, algorithm, batch, error)) from error

    return named


def _message(function: Law, found: str, algorithm: Algorithm, batch: TensorDict, error: Exception) -> str:
    text, violations = law_and_violations(function)
    table = batch_table(batch, fields_of(algorithm), getattr(error, "position", ()))
    parts = {"law": wrap(text, _WIDTH), "often broken by": wrap(violations, _WIDTH), "batch": table.splitlines()}
    lines = [f"  {name}:\n" + "\n".join(f"    {line}" for line in lines) for name, lines in parts.items()]
    return "\n".join([f"{function.__name__}: {found}", *lines])


def law_and_violations(function: Law) -> tuple[str, str]:
    """The law in words, and its common violations, from the docstring of `function`.

    >>> def law(algorithm, batch):
    ...     "Nothing changes. Common violations: a lost reward, a wrong sign. An exemption needs a reason."
    >>> law_and_violations(law)
    ('Nothing changes. An exemption needs a reason.', 'a lost reward, a wrong sign')
    """
    text = " ".join((function.__doc__ or "").split())
    before, _, after = re.split(r"Common violation(s?): ", text, maxsplit=1)
    violations, _, rest = after.partition(". ")
    return f"{before}{rest}".strip(), violations.removesuffix(".")


def assert_same(
    expected: Outcome,
    actual: Outcome,
    *,
    tolerance: float = 1e-9,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
) -> None:
    """Raise `ViolationError` with the `first_difference` of two outcomes.

    If their rows or tokens are not those of the batch, `rows` has the row of the batch for each row of an outcome, and
    `columns`, [rows, time], the token for each token.
    """
    difference = first_difference(expected, actual, tolerance=tolerance)
    if difference is not None:
        if not difference.index or difference.name not in expected.rows:
            raise ViolationError(str(difference))
        row, token, rest = difference.index[:1], difference.index[1:2], difference.index[2:]
        token = token if columns is None else tuple(int(columns[row[0], time]) for time in token)
        index = (*(row if rows is None else (int(rows[row]),)), *token, *rest)
        raise ViolationError(str(difference._replace(index=index)), index[:2])


def map_rows(outcome: Outcome, function: Callable[[Tensor], Tensor]) -> Outcome:
    """`outcome` with `function` applied to every tensor in `rows`."""
    return outcome._replace(rows={name: function(value) for name, value in outcome.rows.items()})
