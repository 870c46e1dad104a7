"""A clear error if the package of an adapter is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from purerl.errors import ConfigError

__all__ = ["installed"]


@contextmanager
def installed(package: str) -> Iterator[None]:
    """Raise ConfigError with the command that installs `package` if an import in the block fails.

    `package` is also the name of the extra of purerl.

    >>> with installed("gymnasium"):
    ...     import no_such_module
    Traceback (most recent call last):
    purerl.errors.ConfigError: gymnasium cannot be imported
      got:  ModuleNotFoundError: No module named 'no_such_module'
      do:   pip install 'purerl[gymnasium]'
    """
    try:
        yield
    except ImportError as error:
        got, do = f"{type(error).__name__}: {error}", f"pip install 'purerl[{package}]'"
        raise ConfigError(f"{package} cannot be imported", got=got, do=do) from error
