"""Runs on two ranks whose policy replays the experts of the generator: each rank samples rows that both train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loop.runs import records, without_times
from tests.loop.test_sampled_routes import CHANGED, config_of, waiting_of_experts
from tests.placement.worlds import Action, run_world

pytestmark = pytest.mark.parallel


def test_ranks_replay_the_experts_of_rows_that_another_rank_has_sampled(tmp_path: Path) -> None:
    ended = run_world(config_of(1, num_minibatches=1), tmp_path / "run")
    assert [rank.status for rank in ended] == [0, 0], ended
    assert records(tmp_path / "run")[1][CHANGED] == 0
    assert not [*(tmp_path / "run" / "routes").iterdir()]


def test_a_run_that_resumes_replays_the_same_experts(tmp_path: Path) -> None:
    config = waiting_of_experts(4)
    run_world(config, tmp_path / "whole")
    ended = run_world(config, tmp_path / "run", action=Action(1, 4, "kill"))
    assert ended[1].status == -9, ended
    ended = run_world(config, tmp_path / "run")
    assert [rank.status for rank in ended] == [0, 0], ended
    assert without_times(records(tmp_path / "run")) == without_times(records(tmp_path / "whole"))
