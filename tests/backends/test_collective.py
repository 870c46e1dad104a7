"""`Ranks` and the collective calls of trainers, in one process."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from purerl.algos.algebra import Weighted
from purerl.backends.collective import check_call, sum_metrics, sum_scores
from purerl.errors import CheckpointError, EngineError
from purerl.ranks import Ranks, current_ranks
from tests.backends.training import POLICY, make_batch


def test_without_a_process_group_there_is_one_rank():
    assert current_ranks() == Ranks(rank=0, size=1)
    assert current_ranks().is_first
    assert not Ranks(rank=1, size=2).is_first


def test_calls_of_one_rank_are_the_identity():
    ranks, tensor, value = Ranks(), torch.tensor([1.0, 2.0]), object()
    assert ranks.sum(tensor) is tensor
    ranks.sum_in_place([tensor])
    assert tensor.tolist() == [1.0, 2.0]
    assert ranks.gather(value) == [value]
    ranks.check_same("settings", value)
    check_call(ranks, "step", make_batch(), POLICY)
    metrics = {"loss": Weighted(torch.tensor(1.0), torch.tensor(2))}
    assert sum_metrics(metrics, ranks) == metrics
    scores = TensorDict({"logp": tensor}, batch_size=2)
    assert sum_scores(scores, ranks) is scores


def test_on_first_calls_the_action_and_raises_its_error():
    called = []
    Ranks().on_first(lambda: called.append("action"))
    assert called == ["action"]

    def fail() -> None:
        raise CheckpointError("a full disk")

    with pytest.raises(CheckpointError, match="a full disk"):
        Ranks().on_first(fail)


def test_error_names_up_to_four_ranks_that_differ_from_rank_0(monkeypatch):
    monkeypatch.setattr(Ranks, "gather", lambda self, value, what: ["a", "a", "b", "c", "a", "d", "e", "f"])
    with pytest.raises(EngineError) as error:
        Ranks(0, 8).check_same("settings", "a")
    assert str(error.value).splitlines() == [
        "settings: ranks disagree",
        "  got:  rank 0: 'a'; rank 2: 'b'; rank 3: 'c'; rank 5: 'd'; rank 6: 'e'",
        "  need: the same call with the same arguments on every rank",
    ]
