"""The garbage collector of the process, which is off while packages are imported, and ignores them during a run.

torch, tensordict and transformers create several hundred thousand objects, and almost none of them is garbage. A
collection visits all of them: several times during the imports, and again when a command starts to work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["gc_frozen", "without_collections"]

_IS_INSIDE = ContextVar("is_inside", default=False)
"""Whether a block of `gc_frozen` has begun and not ended."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Inside the block, the garbage collector does not run. It is meant for blocks that take a few seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Inside the block, the garbage collector ignores all objects that exist now.

    torch and transformers create several hundred thousand objects. A full collection visits all of them, and each step
    creates enough objects for a collection. In the default run they took a sixth of the time.

    Blocks may be nested, and objects that the process froze before stay frozen afterwards.
    """
    was_frozen = _IS_INSIDE.get() or gc.get_freeze_count() > 0  # counting visits every frozen object
    outer = _IS_INSIDE.set(True)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        _IS_INSIDE.reset(outer)
        if not was_frozen:
            gc.unfreeze()
