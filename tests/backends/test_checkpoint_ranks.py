"""Checkpoints of every mesh are loaded into every other one: checkpoint_table.py, on forked ranks."""

from __future__ import annotations

import pytest

from tests.ranks import check_cases

pytestmark = pytest.mark.parallel


@pytest.mark.parametrize("ranks", [2, 4])
def test_checkpoint_of_each_mesh_is_continued_by_each_other(ranks: int) -> None:
    check_cases("-m", "tests.backends.checkpoint_table", ranks=ranks, timeout=1500)
