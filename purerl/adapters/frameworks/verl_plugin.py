"""The entry point in the group ``verl.plugins``: importing verl registers purerl's losses and estimators in it.

One line on stderr says what was registered, in every process that imports verl. verl hides what goes wrong when it
loads a plugin, so that is printed here, too. An error in the file that PURERL_VERL names ends the process: the run
would fail later, when it looks up the variant. After any other error verl continues without purerl.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purerl.adapters.frameworks.verl import Registered

__all__ = ["VARIANTS", "load"]

VARIANTS = "PURERL_VERL"
"""The environment variable with the path of the TOML file of variants."""


def load() -> None:
    """Register everything in verl, and print what was registered.

    Raises: SystemExit for an invalid file of variants, and what goes wrong otherwise, after its traceback is printed.
    """
    try:
        _print(_register(os.environ.get(VARIANTS)))
    except Exception:
        _print(f"purerl cannot be used in verl, because of this error\n{traceback.format_exc()}")
        raise


def _register(path: str | None) -> str:
    """Register everything, with the variants in the file at `path`, and return the line that says so."""
    from purerl.adapters.frameworks.verl import read_variants, register
    from purerl.errors import ConfigError

    try:
        variants = read_variants(path) if path else {}
    except ConfigError as error:
        raise SystemExit(f"purerl in verl, {VARIANTS}: {error}") from error
    return _summary(register(variants), tuple(variants), path)


def _summary(registered: Registered, variants: tuple[str, ...], path: str | None) -> str:
    from importlib.metadata import version

    from purerl.adapters.frameworks.verl import PREFIX

    text = f"purerl {version('purerl')} in verl: {len(registered.losses)} policy losses and "
    text += f"{len(registered.estimators)} advantage estimators, named {PREFIX}NAME"
    if not path:
        return text
    return f"{text}; variants in {path}: {', '.join(_with_part(name, registered) for name in variants) or 'none'}"


def _with_part(name: str, registered: Registered) -> str:
    if name in registered.refused:
        return f"{name} ({'loss' if name in registered.losses else 'estimator'} only)"
    return name


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - logging in verl shows warnings only


def __getattr__(name: str) -> Any:
    """`registered` is what verl looks up: it loads plugins, and calls none of them."""
    if name == "registered":
        load()
        return True
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
