"""`Ranks` and the collective calls of trainers, in two processes with gloo."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.ranks import results_of_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    """The results of `collective_calls` on each of two ranks."""
    return results_of_ranks("tests.backends.collective_calls", tmp_path_factory.mktemp("ranks"))


def test_ranks_are_those_of_the_process_group(results):
    assert [result["ranks"] for result in results] == [[0, 2, True], [1, 2, False]]


def test_gather_returns_the_values_in_the_order_of_ranks(results):
    expected = [{"rank": 0, "values": (1, None)}, {"rank": 1, "values": (1, None)}]
    assert [result["gather"] for result in results] == [expected] * 2


def test_sums_are_equal_on_all_ranks(results):
    for result in results:
        sums = result["sums"]
        assert sums["sum"].tolist() == [3.0, 10.0]
        assert [tensor.tolist() for tensor in sums["sum_in_place"]] == [
            [[3.0, 3.0], [3.0, 3.0]],
            [1.0],  # 2**-29 is lost in float32: tensors are summed in their own dtype
            0.0,
            [[2**41 + 1]],
        ]
        dtypes = [tensor.dtype for tensor in sums["sum_in_place"]]
        assert dtypes == [torch.float64, torch.float32, torch.float64, torch.int64]


def test_metrics_are_summed_in_float64(results):
    for result in results:
        metrics = result["sums"]["sum_metrics"]
        assert {name: [float(value) for value in metric] for name, metric in metrics.items()} == {
            "loss": [5.0, 8.0],
            "other": [0.2, 1.0],
            "largest": [3.0, 1.0],
        }
        assert {value.dtype for metric in metrics.values() for value in metric} == {torch.float64}


def test_scores_have_the_rows_of_all_ranks(results):
    for result in results:
        scores = result["sums"]["sum_scores"]
        assert scores["logp"][:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]
        assert scores["topk_tokens"][:, 0, 0].tolist() == [1, 2, 1, 2]
        assert scores["topk_tokens"].dtype == torch.int64


def test_action_on_first_runs_on_rank_0_before_other_ranks_continue(results):
    assert [result["on_first"]["called"] for result in results] == [[0], []]
    assert [result["on_first"]["written"] for result in results] == ["complete"] * 2


def test_error_on_first_is_raised_on_all_ranks(results):
    message = "a checkpoint\n  got:  a full disk\n  need: space"
    assert [result["on_first"]["error"] for result in results] == [["CheckpointError", message]] * 2


def test_check_same_raises_on_all_ranks_and_names_the_values(results):
    message = (
        "settings: ranks disagree\n"
        "  got:  rank 0: {'lr': 1.0}; rank 1: {'lr': 2.0}\n"
        "  need: the same call with the same arguments on every rank"
    )
    for result in results:
        assert result["check_same"] == []
        assert result["check_different"] == ["EngineError", message]


def test_equal_calls_of_trainers_are_accepted(results):
    assert [result["checks"]["same"] for result in results] == [[], []]


@pytest.mark.parametrize("missing", ["no row labels", "no attention mask"])
def test_missing_field_is_left_to_the_validation_of_the_batch(results, missing):
    assert [result["checks"][missing] for result in results] == [[], []]


DIFFERENCES = {
    "method": r"rank 0: 'score, 6 rows, (\w+)'; rank 1: 'step, 6 rows, \1'",
    "number of rows": r"rank 0: 'score, 6 rows, \w+'; rank 1: 'score, 5 rows, \w+'",
    "rows": r"rank 0: 'score, 2 rows, \w+'; rank 1: 'score, 2 rows, \w+'",
    "row labels on one rank": r"rank 0: 'score, 6 rows, \w+'; rank 1: 'score, 6 rows, \w+'",
    "lengths": r"rank 0: 'score, 6 rows, \w+'; rank 1: 'score, 6 rows, \w+'",
    "outputs": r"rank 0: 'score, 6 rows, \w+'; rank 1: 'score, 6 rows, \w+'",
    "objective": r"rank 0: 'step, 6 rows, \w+'; rank 1: 'step, 6 rows, \w+'",
    "weight of a term": r"rank 0: 'step, 6 rows, \w+'; rank 1: 'step, 6 rows, \w+'",
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_different_calls_of_trainers_are_refused_on_all_ranks(results, difference):
    first, second = (result["checks"][difference] for result in results)
    assert first == second
    kind, message = first
    assert kind == "EngineError"
    assert re.search(rf"^a call of a trainer: ranks disagree\n  got:  {DIFFERENCES[difference]}\n", message)
