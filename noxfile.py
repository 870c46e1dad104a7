"""The checks, by name. `nox` runs those of `nox.options.sessions`; `nox -s NAME` runs one.

They run in the environment that nox itself is installed in, so people and CI check what they work with.
"""

from __future__ import annotations

import sys

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests", "laws", "docs"]

# Several threads fight over the cores of a small machine, and spin while they wait.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def _python(session: nox.Session, *arguments: str) -> None:
    session.run(sys.executable, "-m", *arguments, env=_ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and formatting."""
    _python(session, "ruff", "check", ".")
    _python(session, "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Types."""
    _python(session, "pyright", "--pythonpath", sys.executable)


@nox.session
def tests(session: nox.Session) -> None:
    """Examples, oracles, messages and library rules; the examples in docstrings."""
    _python(session, "pytest", *session.posargs)


@nox.session
def laws(session: nox.Session) -> None:
    """The laws, walked over every algorithm."""
    _python(session, "pytest", "property_tests", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, in docs/_build; a warning is an error."""
    _python(session, "sphinx", "-q", "-W", "--keep-going", "docs", "docs/_build", *session.posargs)


@nox.session
def train(session: nox.Session) -> None:
    """The run that `purerl train` does by default, from its beginning, in a folder of its own."""
    _python(session, "purerl_cli", "train", "--directory", session.create_tmp(), "--fresh", *session.posargs)
