"""The age of sampled tokens, and the refusal of tokens that are too old."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from purerl.backends.fake.engine import FakeGenerator
from purerl.batch import collate, with_fields
from purerl.errors import EngineError
from purerl.loop.metrics.mismatch import check_staleness, staleness_metrics
from purerl.loop.train import train
from purerl.protocols import Weights
from purerl.types import TensorDict
from tests.loop.small import fake


def batch_of(versions: list[int]) -> TensorDict:
    """A row with a prompt of one token, which has version 0."""
    batch = collate([dict(tokens=[1] * (1 + len(versions)), action=[0] + [1] * len(versions), row=0, group=0)])
    return with_fields(batch, version=torch.tensor([[0, *versions]]))


def test_ages_are_those_of_action_tokens() -> None:
    assert staleness_metrics(batch_of([5, 7]), 7) == {"rollout/staleness": 1.0, "rollout/staleness_max": 2}
    assert staleness_metrics(batch_of([]), 7) == {}
    assert staleness_metrics(batch_of([5]).exclude("version"), 7) == {}


@pytest.mark.parametrize(("limit", "is_refused"), [(0, True), (1, True), (2, False), (3, False), (None, False)])
def test_tokens_older_than_the_limit_are_refused(limit: int | None, is_refused: bool) -> None:
    if not is_refused:
        return check_staleness(batch_of([5, 7]), 7, limit)
    with pytest.raises(EngineError, match=r"tokens of step 8 were sampled with weights that are 2 updates old"):
        check_staleness(batch_of([5, 7]), 7, limit)
    return None


def test_a_run_whose_generator_does_not_take_new_weights_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = FakeGenerator.load_weights

    def stuck(self: FakeGenerator, weights: Weights, *, version: int) -> None:
        load(self, weights, version=min(version, 1))

    monkeypatch.setattr(FakeGenerator, "load_weights", stuck)
    with pytest.raises(EngineError, match="tokens of step 3 were sampled with weights that are 1 updates old"):
        train(fake(), directory=tmp_path / "run")
