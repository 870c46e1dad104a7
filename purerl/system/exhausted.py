"""Errors of a computer on which memory, file descriptors, processes or threads are exhausted, in words."""

from __future__ import annotations

import errno
import re
import resource

from purerl.errors import RunError

__all__ = ["explain_exhausted"]

_MEMORY = re.compile(r"can't allocate memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE)
_THREADS = re.compile(r"can't start new thread")


def explain_exhausted(error: BaseException) -> RunError | None:
    """The error in words if something is exhausted on this computer, and `error` or one of its causes says so.

    None for any other error.

    >>> print(explain_exhausted(MemoryError("in a test")))
    too little memory
      got:  MemoryError: in a test
      need: memory for the models and the batch of a step
      do:   `purerl plan` shows what a run needs and what lowers it; `ulimit -v` shows a limit of this process
    """
    current: BaseException | None = error
    seen = set[int]()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if (found := _explain(current)) is not None:
            return found
        current = current.__cause__ or current.__context__
    return None


def _explain(error: BaseException) -> RunError | None:
    number, text = getattr(error, "errno", None), str(error)
    got = ": ".join(filter(None, [type(error).__name__, text.partition("\n")[0]]))
    if number in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        need = f"more than the {limit:,} files that this process may open at once"
        return RunError("too few file descriptors", got=got, need=need, do="raise the limit: ulimit -n 65536")
    is_of_torch = isinstance(error, RuntimeError) and _MEMORY.search(text) is not None
    if isinstance(error, MemoryError) or number == errno.ENOMEM or is_of_torch:
        do = "`purerl plan` shows what a run needs and what lowers it; `ulimit -v` shows a limit of this process"
        return RunError("too little memory", got=got, need="memory for the models and the batch of a step", do=do)
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and _THREADS.search(text)):
        need, do = "permission to start processes and threads", "raise the limit: ulimit -u, or end other processes"
        return RunError("no more processes or threads", got=got, need=need, do=do)
    return None
