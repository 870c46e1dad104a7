"""The type checker that the import hook puts around every function of `purerl.algos`: an int will do for a float."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
from beartype import BeartypeConf, beartype

__all__ = ["checked", "unchecked"]

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextmanager
def unchecked() -> Iterator[None]:
    """Without it: `torch.compile` cannot look through a checker, and would make more than one graph."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
