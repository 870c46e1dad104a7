"""Baselines for rows: by the batch, by length, by component; each against its definition in plain Python."""

from __future__ import annotations

import functools
import statistics

import pytest
import torch

from purerl.algos import (
    batch_normalized_advantage,
    component_normalized_advantage,
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    has_mean_in_range,
    length_weighted_advantage,
    mean_normalized_advantage,
    singleton_score,
)

LABELS = [2**62, -(2**62), 0, -1]


def by_length(score, group, counted):
    length = torch.arange(1, score.shape[-1] + 1, dtype=score.dtype).expand_as(score)
    return length_weighted_advantage(score, length, group, counted)


def by_component(score, group, counted):
    return component_normalized_advantage(torch.stack([score, -score.square()], -1), group, counted, weights=(1.0, 0.5))


single = functools.partial(singleton_score, estimator=group_centered_advantage)
ESTIMATORS = [
    batch_normalized_advantage,
    mean_normalized_advantage,
    gpg_advantage,
    by_length,
    by_component,
]


def example(rows: int = 40, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    group = torch.tensor(LABELS)[torch.randint(0, 4, (rows,), generator=draw)]
    score = torch.randint(0, 3, (rows,), generator=draw).to(dtype)
    score[group == 0] = 0.1  # A group that does not vary.
    return score, group, torch.rand(rows, generator=draw) < 0.8


def in_plain_python(estimator, score: list[float], group: list[int]) -> list[float]:
    members = {label: [i for i, g in enumerate(group) if g == label] for label in group}
    mean = {label: statistics.fmean(score[i] for i in rows) for label, rows in members.items()}
    vary = sum(len({score[j] for j in members[g]}) > 1 for g in group)
    total = {label: sum(i + 1 for i in rows) for label, rows in members.items()}
    weighted = {g: sum((i + 1) * score[i] for i in rows) / total[g] for g, rows in members.items()}
    return {
        batch_normalized_advantage: [
            (s - mean[g]) / (statistics.stdev(score) + 1e-6) for s, g in zip(score, group, strict=True)
        ],
        mean_normalized_advantage: [(s - mean[g]) / mean[g] for s, g in zip(score, group, strict=True)],
        gpg_advantage: [(s - mean[g]) * len(score) / vary for s, g in zip(score, group, strict=True)],
        by_length: [s - weighted[g] for s, g in zip(score, group, strict=True)],
    }[estimator]


@pytest.mark.parametrize("estimator", ESTIMATORS[:4])
def test_equals_the_definition(estimator):
    score, group, _ = example()
    actual = estimator(score, group, torch.ones(len(score)) > 0)
    expected = torch.tensor(in_plain_python(estimator, score.tolist(), group.tolist()), dtype=torch.float64)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_that_do_not_count_are_absent(estimator):
    score, group, counted = example()
    if estimator is by_length:  # Its lengths are those of the batch.
        counted = torch.arange(len(score)) < 30
    actual = estimator(torch.where(counted, score, torch.nan), group, counted)
    assert not actual[~counted].any()
    every = torch.ones(int(counted.sum())) > 0
    torch.testing.assert_close(actual[counted], estimator(score[counted], group[counted], every))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_scores_are_equal_there_is_exactly_nothing(estimator, dtype):
    score, group = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 7.0], dtype=dtype), torch.tensor([3, 3, 3, 4, 4, 5])
    actual = estimator(score, group, torch.ones(6) > 0)
    assert actual.dtype == dtype
    assert not actual[:3].any(), "a group without variance"
    assert not actual[5], "a group of one"
    assert actual[3] > 0 or estimator is by_component


@pytest.mark.parametrize("estimator", [*ESTIMATORS, single, functools.partial(has_mean_in_range, low=0.2, high=0.8)])
def test_leading_axes_and_vmap_are_a_loop(estimator):
    score, group, counted = (torch.stack(x.split(8)) for x in example())
    loop = torch.stack([estimator(*row) for row in zip(score, group, counted, strict=True)])
    torch.testing.assert_close(estimator(score, group, counted), loop)
    torch.testing.assert_close(torch.func.vmap(estimator)(score, group, counted), loop)
    none = torch.zeros(0)
    assert estimator(none, none.long(), none.bool()).shape == (0,)


def test_the_length_weighted_baseline_has_the_least_variance_where_gradients_grow_with_length():
    """Of all b, sum_i n_i (s_i - b)^2 is least at the weighted mean."""
    score, length = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([1.0, 4.0, 2.0])
    actual = score - length_weighted_advantage(score, length, torch.tensor([0, 0, 0]), torch.ones(3) > 0)
    b = actual[:1].clone().requires_grad_()
    [slope] = torch.autograd.grad((length * (score - b).square()).sum(), b)
    torch.testing.assert_close(slope, torch.zeros(1), atol=1e-6, rtol=0)


def test_components_are_normalized_one_by_one():
    score, group, counted = example()
    each = [group_normalized_advantage(x, group, counted) for x in (score, -score.square())]
    torch.testing.assert_close(by_component(score, group, counted), each[0] + 0.5 * each[1])
