"""Check that the library of a tracker is installed."""

from __future__ import annotations

from importlib.util import find_spec

from purerl.errors import ConfigError
from purerl.system.installation import install_command

__all__ = ["require_library"]


def require_library(library: str, *, extra: str) -> None:
    """Check that `library` is installed, without importing it. `extra` is the extra of purerl that installs it.

    A directory of the same name in the working directory, such as the one that wandb creates, does not count as the
    library.

    Raises: ConfigError if the library is not installed.
    """
    spec = find_spec(library)
    if spec is None or spec.origin is None:
        need, do = f"the library {library}, which is not installed", install_command(extra)
        raise ConfigError("kind", got=repr(extra), need=need, do=do)
