"""The garbage collector at the end of a command.

When a process exits, a collection visits every object. In a short command it takes a tenth of the time.
"""

from __future__ import annotations

import atexit
import gc
import sys

__all__ = ["exit_without_collections"]


def exit_without_collections() -> None:
    """Let the garbage collector ignore, when the process exits, all objects that exist then.

    With triton, which torch.distributed imports, it does not: triton's library would print what was not collected.
    """
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
