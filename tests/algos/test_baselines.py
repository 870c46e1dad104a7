"""Advantages of rows by batch, length and component, compared with their definitions in plain Python."""

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
    score[group == 0] = 0.1  # A group without variance.
    return score, group, torch.rand(rows, generator=draw) < 0.8


def in_plain_python(estimator, score: list[float], group: list[int]) -> list[float]:
    members = {label: [i for i, g in enumerate(group) if g == label] for label in group}
    mean = {label: statistics.fmean(score[i] for i in rows) for label, rows in members.items()}
    varying_rows = sum(len({score[j] for j in members[g]}) > 1 for g in group)
    total = {label: sum(i + 1 for i in rows) for label, rows in members.items()}
    weighted = {g: sum((i + 1) * score[i] for i in rows) / total[g] for g, rows in members.items()}
    return {
        batch_normalized_advantage: [
            (s - mean[g]) / (statistics.stdev(score) + 1e-6) for s, g in zip(score, group, strict=True)
        ],
        mean_normalized_advantage: [(s - mean[g]) / mean[g] for s, g in zip(score, group, strict=True)],
        gpg_advantage: [(s - mean[g]) * len(score) / varying_rows for s, g in zip(score, group, strict=True)],
        by_length: [s - weighted[g] for s, g in zip(score, group, strict=True)],
    }[estimator]


@pytest.mark.parametrize("estimator", ESTIMATORS[:4])
def test_estimator_equals_the_definition(estimator):
    score, group, _ = example()
    actual = estimator(score, group, torch.ones(len(score)) > 0)
    expected = torch.tensor(in_plain_python(estimator, score.tolist(), group.tolist()), dtype=torch.float64)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_uncounted_rows_have_no_effect(estimator):
    score, group, counted = example()
    if estimator is by_length:  # The lengths are the positions in the batch, so only the last rows can be left out.
        counted = torch.arange(len(score)) < 30
    actual = estimator(torch.where(counted, score, torch.nan), group, counted)
    assert not actual[~counted].any()
    all_counted = torch.ones(int(counted.sum())) > 0
    torch.testing.assert_close(actual[counted], estimator(score[counted], group[counted], all_counted))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_advantage_is_exactly_zero_if_scores_are_equal(estimator, dtype):
    score, group = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 7.0], dtype=dtype), torch.tensor([3, 3, 3, 4, 4, 5])
    actual = estimator(score, group, torch.ones(6) > 0)
    assert actual.dtype == dtype
    assert not actual[:3].any(), "a group without variance"
    assert not actual[5], "a group of one row"
    assert actual[3] > 0 or estimator is by_component


@pytest.mark.parametrize("estimator", [*ESTIMATORS, single, functools.partial(has_mean_in_range, low=0.2, high=0.8)])
def test_leading_axes_and_vmap_equal_a_loop(estimator):
    score, group, counted = (torch.stack(x.split(8)) for x in example())
    loop = torch.stack([estimator(*row) for row in zip(score, group, counted, strict=True)])
    torch.testing.assert_close(estimator(score, group, counted), loop)
    torch.testing.assert_close(torch.func.vmap(estimator)(score, group, counted), loop)
    empty = torch.zeros(0)
    assert estimator(empty, empty.long(), empty.bool()).shape == (0,)


def test_length_weighted_baseline_minimizes_the_variance():
    """The weighted mean is the minimum of sum_i n_i (s_i - b)^2 over b."""
    score, length = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([1.0, 4.0, 2.0])
    baseline = score - length_weighted_advantage(score, length, torch.tensor([0, 0, 0]), torch.ones(3) > 0)
    b = baseline[:1].clone().requires_grad_()
    [gradient] = torch.autograd.grad((length * (score - b).square()).sum(), b)
    torch.testing.assert_close(gradient, torch.zeros(1), atol=1e-6, rtol=0)


def test_components_are_normalized_separately():
    score, group, counted = example()
    first, second = (group_normalized_advantage(x, group, counted) for x in (score, -score.square()))
    torch.testing.assert_close(by_component(score, group, counted), first + 0.5 * second)
