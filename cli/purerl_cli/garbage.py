"""The work of the garbage collector in short commands.

torch and tensordict create several hundred thousand objects, and almost none of them is garbage. A collection visits
all of them: several times during the imports, again when a command starts to work, and again when the process exits.
Together this takes a third of the time of a command such as `purerl algo diff`.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["exit_without_collections", "without_collections"]


@contextmanager
def without_collections() -> Iterator[None]:
    """Inside the block, the garbage collector does not run. It is meant for commands that take a few seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def exit_without_collections() -> None:
    """Let the garbage collector ignore, when the process exits, all objects that exist then.

    With triton, which torch.distributed imports, it does not: triton's library would print what was not collected.
    """
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
