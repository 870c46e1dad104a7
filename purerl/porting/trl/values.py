"""Values in a script of TRL that are objects when it runs: models, data sets, functions, and settings classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Adapted", "Dataset", "Function", "Instance", "Pretrained"]


class Pretrained(NamedTuple):
    """A model, as `from_pretrained` loads it: its path, the other arguments, and the place as ``file:line``."""

    path: Any
    arguments: Mapping[str, Any]
    place: str


class Adapted(NamedTuple):
    """A model with an adapter, as ``get_peft_model`` returns it."""

    model: Any
    adapter: Any


class Dataset(NamedTuple):
    """A data set.

    load    the source text of the call that reads it
    name    its name on the hub, or of a directory
    split   the split that is used; None if all are
    files   its files by split, if it is read from files that purerl can read; "" if they have no splits
    steps   names of methods that change it, such as map and filter
    place   the line of the script, as ``file:line``
    """

    load: str
    name: str
    split: str | None
    files: Mapping[str, tuple[str, ...]]
    steps: tuple[str, ...]
    place: str


class Function(NamedTuple):
    """A function or a class that the script defines or imports.

    address    ``module:name``, or ``file.py:name``
    arguments  those of the call that creates the function, if there is one
    runs_all   whether importing the function runs the training of the script
    """

    address: str
    arguments: Mapping[str, Any] | None
    runs_all: bool


class Instance(NamedTuple):
    """A call of a class whose fields are settings: its name, the arguments, and the place as ``file:line``."""

    name: str
    arguments: Mapping[str, Any]
    place: str
