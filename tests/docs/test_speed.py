"""The functions that are measured for docs/reference/speed.md."""

from __future__ import annotations

import pytest
import torch

from benchmarks.peers.batch import Row, draw
from benchmarks.peers.laws import broken_laws
from benchmarks.peers.objectives import LOSSES, gradient


@pytest.mark.parametrize("row", LOSSES, ids=lambda row: row.name)
def test_loss_of_purerl_runs_on_tensors_without_values(row: Row) -> None:
    assert "sync" not in broken_laws(row.functions["purerl"], grouped=row.grouped)


def test_gradient_of_a_loss_that_is_not_finite_is_nan() -> None:
    batch = draw(2, 16)
    assert gradient(lambda _, logp: (logp / 0).sum())(batch).isnan().all()
    assert torch.equal(gradient(lambda _, logp: logp.sum())(batch), torch.ones(2, 16))
