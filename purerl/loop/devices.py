"""The check that the devices of a run exist, before anything starts."""

from __future__ import annotations

from typing import Any

from purerl.config.schema import RunConfig
from purerl.plugins import find, kind_of
from purerl.settings import in_section
from purerl.system.devices.accelerator import device_of

__all__ = ["check_devices"]


def check_devices(config: RunConfig) -> None:
    """Raise ConfigError if torch cannot use the device of the trainer or the generator, also those of an initial run.

    Actors of Ray may have other devices than this process, so theirs are checked when they start.
    """
    if config.placement.kind == "ray":
        return
    for prefix, phase in (("initial_run.", config.initial_run), ("", config)):
        for name in ("trainer", "generator"):
            settings = getattr(phase, name, None)
            if settings is not None:
                with in_section(f"{prefix}{name}", type(settings)):
                    _check(name, settings)


def _check(name: str, settings: Any) -> None:
    """Check the device of the engine with these `settings`, by `check_device` of its module if it has one."""
    check = getattr(find(name, kind_of(settings)), "check_device", None)
    if check is not None:
        check(settings)
    else:
        device_of(getattr(settings, "device", "auto"))
