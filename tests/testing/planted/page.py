"""The page of planted errors: ``python -m tests.testing.planted.page > docs/reference/planted_errors.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from purerl.testing import environment, generator, trainer
from tests.testing.planted.environments import PlantedEnvironment
from tests.testing.planted.errors import Planted
from tests.testing.planted.lists import ENVIRONMENTS, GENERATORS, TRAINERS

__all__ = ["page"]

_CHECKS: Mapping[str, Sequence[Callable]] = {
    "generators": (*generator.ALWAYS, *generator.SAMPLING, *generator.REFUSED, *generator.EXACT),
    "trainers": trainer.CHECKS,
    "environments": environment.CHECKS,
}
_ERRORS: Mapping[str, Mapping[str, Planted | PlantedEnvironment]] = {
    "generators": GENERATORS,
    "trainers": TRAINERS,
    "environments": ENVIRONMENTS,
}
_SUITES = {"generators": "check_generator", "trainers": "check_trainer", "environments": "check_environment"}


def page() -> str:
    """The page in Markdown: a table of counts, and each suite's checks with their planted errors."""
    counts = [f"| {_SUITES[kind]} | {len(_CHECKS[kind])} | {len(errors)} |" for kind, errors in _ERRORS.items()]
    sections = (
        *("# Planted errors", "", _INTRODUCTION, ""),
        *("| suite | checks | planted errors |", "|---|---|---|", *counts),
        *("", _AFTER_COUNTS),
        *(line for kind in _ERRORS for line in _section(kind)),
    )
    return "\n".join(sections) + "\n"


def _section(kind: str) -> Iterator[str]:
    yield from ("", f"## Errors of {kind}", "", "| check | planted errors that it has to report |", "|---|---|")
    for check in _CHECKS[kind]:
        own = [error for error in _ERRORS[kind].values() if error.check.__name__ == check.__name__]
        yield f"| `{check.__name__}` | {'<br>'.join(' '.join(error.description.split()) for error in own)} |"


_INTRODUCTION = """\
An engine or an environment of your own is tested by a conformance suite in `purerl.testing`. A suite is useful if it
finds errors, and says which. So errors are planted for each check: an engine or an environment that is right, except
for one thing. For each of them, the whole suite runs, and has to report the error by the name of its check. No check
before may fail: if your engine has several errors, the first failure is the cause of the others.

The planted errors are in `tests/testing/planted/`, and run in CI (`nox -s tests`, and the whole suites for generators
and environments in `nox -s slow`). Most are bugs of real engines. Further ones of the trainer `hf` are in
`tests/backends/test_trainer_conformance.py`."""

_AFTER_COUNTS = """\
A message has the name of the check, the value and the expected value, and the rule that the check tests, also if the
engine raises an exception: then it has the exception with its advice. NaN is called so.

The suites do not find every error. The temperature of sampling is tested up to 5 %, frequencies up to what 2000 samples
show, and a default `top_k` of an engine only if it is smaller than the vocabulary of the test.

`python -m tests.testing.planted.page` generates this page. A test fails if the page is out of date."""

if __name__ == "__main__":
    sys.stdout.write(page())
