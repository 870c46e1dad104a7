"""Existing files and directories whose names are similar to a path that does not exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from purerl.errors import similar

__all__ = ["similar_path"]


def similar_path(path: Path, is_right: Callable[[Path], bool] = lambda path: True) -> Path | None:
    """The path in place of `path` whose first part that does not exist has a similar name; None if there is none.

    is_right  whether an existing path is what is searched for
    """
    missing = next((each for each in (*reversed(path.parents), path) if not each.exists()), None)
    if missing is None or not missing.parent.is_dir():
        return None
    rest = path.relative_to(missing)
    try:
        found = {each.name: each / rest for each in missing.parent.iterdir()}
    except OSError:
        return None
    name = similar(missing.name, [name for name, each in found.items() if each.exists() and is_right(each)])
    return found[name] if name else None
