"""A local Ray for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from purerl.placement.actors.cluster import connected
from purerl.placement.actors.engines import RayEngines, ray_engines
from purerl.placement.settings import Actors, Placement


@pytest.fixture(scope="module")
def open_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], RayEngines]]:
    """A function of a number of actors that returns engines in as many, all in one local Ray."""
    path = tmp_path_factory.mktemp("run")
    with ExitStack() as stack:
        stack.enter_context(connected(Placement(kind="ray", trainers=Actors(count=12)), path))

        @cache
        def engines(count: int) -> RayEngines:
            actors = Actors(count=count)
            placement = Placement(kind="ray", trainers=actors, generators=actors)
            return stack.enter_context(ray_engines(placement, path / str(count)))

        yield engines
