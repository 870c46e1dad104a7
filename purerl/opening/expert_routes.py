"""Experts that the generator has recorded, in a run whose policy replays them: where they are, and for how long.

A rank writes the records of the rows that it has sampled when their group is collected. The policy reads them in the
step of the row, and when the step is over, only those of waiting groups are kept. A checkpoint has the records of its
waiting groups, so a resumed run replays the same experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np

from purerl.config.replayed_routes import replayed_routes
from purerl.expert_routes import RouteStore, SupportsRoutes
from purerl.protocols import Trainer
from purerl.rollouts.types import Group
from purerl.store.directory import RunDirectory

__all__ = ["drop_trained", "records_of", "route_store", "use_routes"]


def route_store(trainer: object, directory: RunDirectory) -> RouteStore | None:
    """The store of a run in `directory`, if `trainer`, the Config of the policy's, replays the generator's experts."""
    return RouteStore(directory.routes.absolute()) if replayed_routes(trainer) == "generator" else None


def use_routes(trainer: object, directory: RunDirectory, policy: Trainer) -> None:
    """Let `policy` read the experts of the generator, if `trainer`, its Config, says that it replays them."""
    store = route_store(trainer, directory)
    if store is not None:
        cast(SupportsRoutes, policy).use_routes(store)


def records_of(groups: Iterable[Group], store: RouteStore | None) -> dict[int, np.ndarray]:
    """The records of the rows of `groups`, by number; none without a store."""
    return {} if store is None else store.read_all(_numbers(groups))


def drop_trained(waiting: Iterable[Group], store: RouteStore | None) -> None:
    """Remove the records of all rows but those of the groups `waiting`. Rank 0 calls it when a step is over."""
    if store is not None:
        store.keep(_numbers(waiting))


def _numbers(groups: Iterable[Group]) -> set[int]:
    return {trajectory.fields["routes"] for group in groups for trajectory in group.trajectories}
