"""The processes in which the engines of a run are built: a placement decides this, and nothing else.

A builder is a function without arguments that returns an engine. `LocalProcesses` calls it here. In
`purerl.placement.actors` it is called in actors, and what the run gets is a proxy with the methods of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from attrs import frozen

from purerl.plugins import find, kind_of
from purerl.protocols import Generator, Trainer

__all__ = ["LOCAL_PROCESSES", "EngineProcesses", "LocalProcesses", "build_engine"]


class EngineProcesses(Protocol):
    """The processes in which the engines of a run are."""

    def trainer(self, role: str, build: Callable[[], Trainer]) -> Trainer:
        """The trainer of `role`, which `build` returns in each process of the role."""
        ...

    def generator(self, name: str, build: Callable[[], Generator]) -> Generator:
        """The generator `name`. Each of its processes has the engine that `build` returns there."""
        ...


@frozen
class LocalProcesses:
    """Every engine is in this process, and in those of the other ranks."""

    def trainer(self, role: str, build: Callable[[], Trainer]) -> Trainer:
        return build()

    def generator(self, name: str, build: Callable[[], Generator]) -> Generator:
        return build()


LOCAL_PROCESSES = LocalProcesses()
"""The engines of a run whose processes are ranks."""


def build_engine(group: str, config: Any, **arguments: Any) -> Any:
    """The engine of the plugin of `group` that `config` belongs to: a builder that can be sent to other processes."""
    return find(group, kind_of(config)).build(config, **arguments)
