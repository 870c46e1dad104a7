"""Settings of the process of a run: torch's threads, the garbage collector, and the folder of compiled code."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from purerl.system.private_files import user_folder

__all__ = ["gc_frozen", "keep_compiled_code_private", "torch_threads"]

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_OF_TORCH = "torchinductor_"  # and the name of the user
_IS_INSIDE = ContextVar("is_inside", default=False)
"""Whether a block of `gc_frozen` has begun and not ended."""


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads, if `number` is not None, and restore it after the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def keep_compiled_code_private() -> None:
    """Let torch.compile keep compiled code in a folder of this user, unless the environment names another one.

    By default it is in the directory for temporary files, under a name that anybody can compute. Who makes that
    directory first can put code into it, which the user would execute.

    Raises: RunError if there is no private folder.
    """
    given = Path(os.environ.get(_COMPILED, ""))
    if not given.is_absolute() or given.name.startswith(_OF_TORCH):  # torch writes its default into the variable
        os.environ[_COMPILED] = str(user_folder() / "inductor")
