"""Running the checks of a conformance suite: a failure has the name of its check, and the rule that the check tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from purerl.errors import ConfigError, nearest

__all__ = ["assert_raises", "check_exemptions", "run_check", "shown"]

Case = TypeVar("Case")


def run_check(check: Callable[[Case], object], case: Case) -> None:
    """Call `check(case)`.

    Raises: AssertionError with the name of the check, what is wrong, and the rule: the docstring of the check. So does
        an exception of the engine, with its type and its whole message.
    """
    try:
        check(case)
    except Exception as error:
        if isinstance(error, AssertionError):
            wrong = str(error)
        else:
            wrong = f"got {type(error).__name__}: {error}\nexpected no exception"
        rule = " ".join((check.__doc__ or "").split())
        raise AssertionError(f"{check.__name__}: {wrong}\n  rule: {rule}") from error


def check_exemptions(exempt: Collection[str], checks: Iterable[Callable]) -> None:
    """Raise ConfigError unless each name in `exempt` is that of a check."""
    known = [check.__name__ for check in checks]
    for name in exempt:
        if name not in known:
            raise ConfigError("an exemption", got=repr(name), need="the name of a check", do=nearest(name, known))


def assert_raises(expected: type[Exception], call: Callable[[], object], what: str) -> None:
    """Raise AssertionError unless `call()` raises `expected`; `what` describes the call."""
    try:
        call()
    except expected:
        return
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{what}: got {got}\nexpected {expected.__name__}") from error
    raise AssertionError(f"{what}: got no error, expected {expected.__name__}")


def shown(value: float) -> str:
    """`value` in a message.

    >>> shown(0.25), shown(float("nan"))
    ('0.25', 'NaN, which is not a number')
    """
    return "NaN, which is not a number" if math.isnan(value) else f"{value:.6g}"
