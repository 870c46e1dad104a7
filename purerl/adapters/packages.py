"""A clear error if the package of an adapter is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from purerl.errors import ConfigError
from purerl.system.installation import install_command

__all__ = ["load"]


def load(module: str, extra: str) -> Any:
    """Import `module` of another library; `extra` is the extra of purerl that installs it.

    Raises: ConfigError with the command that installs it, if it cannot be imported.

    >>> load("no_such_module", "verifiers")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    purerl.errors.ConfigError: no_such_module cannot be imported
      got:  ModuleNotFoundError: No module named 'no_such_module'
      do:   pip install ...[verifiers]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        got, do = f"{type(error).__name__}: {error}", install_command(extra)
        raise ConfigError(f"{module} cannot be imported", got=got, do=do) from error
