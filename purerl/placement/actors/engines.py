"""The engines of a run in actors of Ray: which group of actors has which engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import define, field

from purerl.placement.actors.cluster import connected
from purerl.placement.actors.generator import RemoteGenerator, build_generator
from purerl.placement.actors.group import ActorGroup, started_group
from purerl.placement.actors.package import load_ray
from purerl.placement.actors.trainer import RemoteTrainer, build_trainer
from purerl.placement.settings import Actors, Placement
from purerl.protocols import Generator, Trainer

__all__ = ["RayEngines", "ray_engines"]

_TRAINERS = "trainers"


@define(eq=False)
class RayEngines:
    """Engines in actors. Ray is started or joined, and a group is started, when the first engine is built there."""

    settings: Placement
    directory: Path
    _stack: ExitStack
    _groups: dict[str, ActorGroup] = field(factory=dict)
    _is_connected: bool = False

    def trainer(self, role: str, build: Callable[[], Trainer]) -> RemoteTrainer:
        name = role if role in self.settings.roles else _TRAINERS
        if name not in self._groups:
            self._groups[name] = self._start(name, self.settings.trainers, self._stack, are_ranks=True)
        return build_trainer(self._groups[name], role, build)

    def generator(self, name: str, build: Callable[[], Generator]) -> RemoteGenerator:
        own = self._stack.enter_context(ExitStack())
        group = self._start(name, self.settings.generators, own, are_ranks=False)
        return build_generator(group, name, build, on_close=own.close)

    def _start(self, name: str, default: Actors | None, stack: ExitStack, *, are_ranks: bool) -> ActorGroup:
        if not self._is_connected:
            self._stack.enter_context(connected(self.settings, self.directory))
            self._is_connected = True
        actors = self.settings.roles.get(name) or default or Actors()
        group = started_group(name, actors, self.directory, self.settings.timeout, are_ranks=are_ranks)
        return stack.enter_context(group)


@contextmanager
def ray_engines(settings: Placement, directory: Path) -> Iterator[RayEngines]:
    """The engines of the run in `directory`, in actors that end with the block."""
    load_ray()
    with ExitStack() as stack:
        yield RayEngines(settings, directory.absolute(), stack)
