"""The records of experts of rows: they are stored on the rank that has sampled, and rows get their numbers."""

from __future__ import annotations

from attrs import evolve

from purerl.errors import RolloutError
from purerl.expert_routes import RouteStore, number_of
from purerl.rollouts.types import Group, Trajectory

__all__ = ["store_routes"]


def store_routes(group: Group, store: RouteStore | None) -> Group:
    """`group` with the numbers of the records of its rows in the field `routes`; without a store, without this field.

    Raises: RolloutError for a row that was sampled and has no `routes`.
    """
    return evolve(group, trajectories=tuple(_stored(row, store) for row in group.trajectories))


def _stored(row: Trajectory, store: RouteStore | None) -> Trajectory:
    record = row.fields.get("routes")
    if store is None:
        return row if record is None else evolve(row, fields={n: v for n, v in row.fields.items() if n != "routes"})
    if record is None and any(row.fields["action"]):
        need = "the field `routes`, as `token_fields` of purerl.rollouts.fields makes it from completions"
        raise RolloutError("trainer.replay_routes", got="a sampled row without `routes`", need=need)
    number = 0 if record is None else number_of(row.fields["row"])
    if record is not None:
        store.write(number, record)
    return evolve(row, fields={**row.fields, "routes": number})
