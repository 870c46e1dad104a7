"""Group statistics and group-relative advantages: comparison with plain Python, and edge cases."""

from __future__ import annotations

import statistics

import pytest
import torch

from purerl.algos import (
    group_centered_advantage,
    group_normalized_advantage,
    has_variance,
    leave_one_out_advantage,
)
from purerl.algos.parts.groups import group_index

ESTIMATORS = [group_centered_advantage, group_normalized_advantage, leave_one_out_advantage]
INT64 = torch.iinfo(torch.int64)


def advantages(estimator, scores: list[float], group: list[int] | None = None, dtype=torch.float64) -> torch.Tensor:
    labels = torch.tensor(group or [0] * len(scores))
    return estimator(torch.tensor(scores, dtype=dtype), labels, torch.ones(len(scores), dtype=torch.bool))


def in_plain_python(scores: list[float]) -> dict:
    """The three definitions, for one group of two or more rows."""
    mean, std = statistics.fmean(scores), statistics.stdev(scores)
    return {
        group_centered_advantage: [s - mean for s in scores],
        group_normalized_advantage: [(s - mean) / (std + 1e-6) for s in scores],
        leave_one_out_advantage: [s - (sum(scores) - s) / (len(scores) - 1) for s in scores],
    }


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimator_equals_the_definition_on_groups_of_different_sizes(estimator):
    draw = torch.Generator().manual_seed(0)
    labels = [INT64.max, INT64.min, 0, -1, 7]
    group = torch.tensor(labels)[torch.randint(0, 5, (60,), generator=draw)]
    score = torch.randn(60, generator=draw, dtype=torch.float64)
    counted = torch.rand(60, generator=draw) < 0.8
    score[~counted] = torch.nan
    actual = estimator(score, group, counted)
    assert not actual[~counted].any()
    for label in labels:
        members = (group == label) & counted
        torch.testing.assert_close(actual[members].tolist(), in_plain_python(score[members].tolist())[estimator])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("score", [0.1, -1 / 3, 1e6 + 0.1])
def test_equal_scores_have_an_advantage_of_exactly_zero(estimator, dtype, size, score):
    # The mean of three times 0.1 is not exactly 0.1. The rounding error divided by its standard deviation is of order
    # 1.
    assert not advantages(estimator, [score] * size + [0.0, 5.0], [3] * size + [4, 4], dtype)[:size].any()


def test_label_of_an_uncounted_row_has_no_effect():
    score, counted = torch.tensor([1.0, 0.0, 100.0]), torch.tensor([True, True, False])
    for label in (0, 1):
        actual = group_centered_advantage(score, torch.tensor([0, 0, label]), counted)
        assert actual.tolist() == [0.5, -0.5, 0.0]


def test_large_score_offset_loses_no_precision():
    expected = advantages(group_normalized_advantage, [0.0, 0.5, 1.0], dtype=torch.float32)
    shifted = [1e6, 1e6 + 0.5, 1e6 + 1]
    torch.testing.assert_close(advantages(group_normalized_advantage, shifted, dtype=torch.float32), expected)


def test_empty_batch_gives_an_empty_result():
    empty = torch.zeros(0)
    assert group_index(empty.long()).shape == (0,)
    for estimator in ESTIMATORS:
        assert estimator(empty, empty.long(), empty.bool()).shape == (0,)


@pytest.mark.parametrize("function", [*ESTIMATORS, has_variance])
def test_leading_axes_and_vmap_equal_a_loop(function):
    draw = torch.Generator().manual_seed(0)
    score = torch.randn(3, 8, generator=draw)
    group, counted = torch.randint(-2, 2, (3, 8), generator=draw), torch.rand(3, 8, generator=draw) < 0.7
    loop = torch.stack([function(*row) for row in zip(score, group, counted, strict=True)])
    torch.testing.assert_close(function(score, group, counted), loop)
    torch.testing.assert_close(torch.func.vmap(function)(score, group, counted), loop)
