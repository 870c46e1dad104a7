"""The package ray, which is imported only where engines are in actors."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from purerl.errors import ConfigError
from purerl.system.installation import install_command

__all__ = ["load_ray"]


def load_ray() -> Any:
    """The package. Raises: ConfigError if it is not installed."""
    try:
        return import_module("ray")
    except ImportError as error:
        do = install_command("ray")
        raise ConfigError("placement.kind", got="'ray', without the package ray", need="Ray", do=do) from error
