"""The arguments that an environment and its methods must accept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from inspect import Signature
from typing import Any

from purerl.errors import ConfigError

__all__ = ["METHODS", "OPTIONAL_METHODS", "check_kwargs", "check_method", "check_methods"]

METHODS = ("reset", "step", "close")
OPTIONAL_METHODS = ("end",)
_ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "reset": ("self", {}, 0),
    "step": ("self", "", []),
    "close": ("self",),
    "end": ("self", "turns", ""),
}


def check_methods(name: str, methods: Collection[str]) -> None:
    """Raise ConfigError if the class `name`, which has `methods`, is no environment."""
    if missing := [method for method in METHODS if method not in methods]:
        need = "the methods reset, step and close; see purerl.envs.protocol.Environment"
        raise ConfigError(f"factory {name!r}", got=f"a class without {', '.join(missing)}", need=need)


def check_method(name: str, method: str, signature: Signature) -> None:
    """Raise ConfigError if `method` of the class `name` cannot be called as that of an environment is."""
    try:
        signature.bind(*_ARGUMENTS[method])
    except TypeError as error:
        need = "reset(example, seed), step(text, calls), close() and, if there is such a method, end(reason, text)"
        raise ConfigError(f"{name}.{method}{signature}", got=str(error), need=need) from error


def check_kwargs(name: str, signature: Signature, kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError if the factory `name` cannot be called with `kwargs`."""
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        need = f"arguments of {name}{signature}"
        raise ConfigError("kwargs", got=f"{dict(kwargs)}: {error}", need=need) from error
