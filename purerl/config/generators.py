"""Checks of the settings of generators."""

from __future__ import annotations

from purerl.plugins import find, kind_of
from purerl.settings import in_section

__all__ = ["check_generator"]


def check_generator(settings: object, key: str = "generator") -> None:
    """Raise ConfigError for the settings of a generator, at `key`, that its own `check` refuses, if it has one."""
    check_settings = getattr(find("generator", kind_of(settings)), "check", None)
    if check_settings is not None:
        with in_section(key, type(settings)):
            check_settings(settings)
