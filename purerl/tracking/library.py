"""The library that a tracker tells, which may not be there."""

from __future__ import annotations

from importlib.util import find_spec

from purerl.errors import ConfigError

__all__ = ["needs"]


def needs(library: str, *, extra: str) -> None:
    """Refuse a machine without `library`, which is not imported. `extra` is that of purerl which installs it.

    A folder of that name in the working directory, such as wandb leaves, is no library.

    Raises: ConfigError.
    """
    spec = find_spec(library)
    if spec is None or spec.origin is None:
        need, do = f"the library {library}, which is not installed", f"pip install 'purerl[{extra}]'"
        raise ConfigError("kind", got=repr(extra), need=need, do=do)
