"""The experts of the tokens of a row: from the completions of its turns to a record in the store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purerl.errors import BatchError, RolloutError
from purerl.expert_routes import RouteStore, first_records
from purerl.protocols import Completion
from purerl.rollouts import fields as rollout_fields
from purerl.rollouts.fields import RowTurn, token_fields
from purerl.rollouts.rollouts import Rollouts
from purerl.rollouts.row_routes import store_routes
from purerl.rollouts.runtime import Runtime
from purerl.rollouts.types import Draw, Generate, Group, Trajectory
from tests.rollouts.runtimes import draw

PROMPT = [1, 2]


def record(count: int, expert: int) -> np.ndarray:
    """The same expert for `count` tokens, in two layers."""
    return np.full((count, 2, 1), expert, np.int16)


def turns() -> list[RowTurn]:
    """The prompt, two sampled tokens, three added ones, and two sampled ones; each turn has its own experts."""
    first = Completion("a", [5, 6], [-0.1, -0.2], [0, 0], "stop", routes=record(3, 3))
    second = Completion("b", [7, 8], [-0.3, -0.4], [1, 1], "stop", routes=record(8, 4))
    return [RowTurn(0, [], first), RowTurn(1, [9, 9, 9], second)]


def row(number: int, routes: Any = None, action: tuple[bool, ...] = (False, True)) -> Trajectory:
    fields = {"row": number, "tokens": [1, 2], "action": [*action]}
    return Trajectory(fields if routes is None else {**fields, "routes": routes})


# --- turns ---------------------------------------------------------------------------------------------------------


def a_token_has_the_experts_of_the_turn_that_read_it_first() -> None:
    routes = token_fields(PROMPT, turns())["routes"]
    assert routes[:, 0, 0].tolist() == [3, 3, 3, 4, 4, 4, 4, 4], "the last token of a turn is read in the next"


def test_a_token_has_the_experts_of_the_turn_that_read_it_first():
    a_token_has_the_experts_of_the_turn_that_read_it_first()


@pytest.mark.parametrize(
    "mutant", [lambda records: [*records][-1], lambda records: np.concatenate([*records])], ids=["last", "all"]
)
def test_other_experts_of_turns_are_noticed(monkeypatch, mutant):
    monkeypatch.setattr(rollout_fields, "first_records", mutant)
    with pytest.raises(AssertionError):
        a_token_has_the_experts_of_the_turn_that_read_it_first()


def test_a_row_whose_completions_have_no_experts_has_no_field():
    completion = Completion("a", [5, 6], [-0.1, -0.2], [0, 0], "stop")
    assert "routes" not in token_fields(PROMPT, [RowTurn(0, [], completion)])
    assert "routes" not in token_fields(PROMPT, [])


def test_a_shorter_later_record_changes_nothing():
    assert first_records([]) is None
    merged = first_records([record(3, 1), record(2, 2)])
    assert merged is not None
    assert merged[:, 0, 0].tolist() == [1, 1, 1]


def test_completions_are_equal_if_their_experts_are():
    first, second = turns()[0].completion, turns()[0].completion
    assert first == second
    assert first != Completion("a", [5, 6], [-0.1, -0.2], [0, 0], "stop", routes=record(3, 4))
    assert first != Completion("a", [5, 6], [-0.1, -0.2], [0, 0], "stop")


# --- the store -----------------------------------------------------------------------------------------------------


def test_rows_get_the_numbers_of_their_records(tmp_path):
    store = RouteStore(tmp_path / "routes")
    rows = (row(0, record(1, 3)), row(7, record(2, 4)), row(8, None, (False, False)))
    group = store_routes(Group(0, rows), store)
    assert [each.fields["routes"] for each in group.trajectories] == [1, 8, 0]
    for number, expected in ((1, record(1, 3)), (8, record(2, 4))):
        np.testing.assert_array_equal(store.read(number), expected)
    assert {*store.read_all([0, 1, 8])} == {1, 8}


def test_without_a_store_rows_lose_their_experts():
    group = store_routes(Group(0, (row(0, record(1, 3)), row(1))), None)
    assert all("routes" not in each.fields for each in group.trajectories)


def test_a_sampled_row_without_experts_is_refused(tmp_path):
    with pytest.raises(RolloutError) as error:
        store_routes(Group(0, (row(0),)), RouteStore(tmp_path))
    assert str(error.value).splitlines() == [
        "trainer.replay_routes",
        "  got:  a sampled row without `routes`",
        "  need: the field `routes`, as `token_fields` of purerl.rollouts.fields makes it from completions",
    ]


def test_records_are_kept_by_number(tmp_path):
    store = RouteStore(tmp_path / "routes")
    store.keep(())  # before there is a directory
    for number in (1, 2, 3):
        store.write(number, record(number, number))
    store.write(2, record(5, 9))
    store.keep({2, 3})
    assert {path.name for path in store.folder.iterdir()} == {"2.npy", "3.npy"}
    np.testing.assert_array_equal(store.read(2), record(5, 9))
    store.replace_all({4: record(1, 1)})
    assert [path.name for path in store.folder.iterdir()] == ["4.npy"]


def test_a_record_that_is_missing_or_damaged_is_refused(tmp_path: Path):
    store = RouteStore(tmp_path)
    for _ in range(2):
        with pytest.raises(BatchError, match="^field 'routes'\n  got:  record 5: "):
            store.read(5)
        store.path(5).write_bytes(b"")


def test_groups_are_stored_when_they_are_collected(tmp_path):
    async def workflow(draw: Draw, generate: Generate) -> list[Trajectory]:
        return [row(draw.number, record(1, draw.number))]

    store = RouteStore(tmp_path / "routes")
    with closing(Runtime()) as runtime:
        rollouts = Rollouts(runtime, workflow, store)
        rollouts.submit([draw(number) for number in range(3)])
        groups: list[Group] = []
        while rollouts.in_flight:
            groups += rollouts.collect(draws=rollouts.in_flight)
    assert sorted(each.fields["routes"] for group in groups for each in group.trajectories) == [1, 2, 3]
    assert store.read(3)[0, 0, 0] == 2
