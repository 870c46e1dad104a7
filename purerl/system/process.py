"""Settings of the process of a run: torch's threads, and the folder of compiled code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from purerl.system.private_files import user_folder

__all__ = ["keep_compiled_code_private", "torch_threads"]

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_OF_TORCH = "torchinductor_"  # and the name of the user


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Set the number of torch's threads, if `number` is not None, and restore it after the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_compiled_code_private() -> None:
    """Let torch.compile keep compiled code in a folder of this user, unless the environment names another one.

    By default it is in the directory for temporary files, under a name that anybody can compute. Who makes that
    directory first can put code into it, which the user would execute.

    Raises: RunError if there is no private folder.
    """
    given = Path(os.environ.get(_COMPILED, ""))
    if not given.is_absolute() or given.name.startswith(_OF_TORCH):  # torch writes its default into the variable
        os.environ[_COMPILED] = str(user_folder() / "inductor")
