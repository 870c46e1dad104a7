"""The type checker that the import hook adds to every function of `purerl.algos`. It accepts an int for a float."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
from beartype import BeartypeConf, beartype

__all__ = ["check_shapes", "shape_checks_disabled"]

check_shapes = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextmanager
def shape_checks_disabled() -> Iterator[None]:
    """Disable shape checks. `torch.compile` cannot trace them and would break the graph."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
