"""Reductions, and statistics of rows, groups and batches, with manually computed values."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import (
    Counts,
    broadcast_to_tokens,
    constant_norm,
    group_deviation,
    group_log_softmax,
    group_max,
    group_mean,
    group_size,
    group_sum,
    group_token_max,
    group_token_sum,
    prompt_weight,
    sequence_mean_of_token_mean,
    sequence_mean_of_token_sum,
    token_mean,
    token_sum,
    whiten,
    whiten_rows,
)
from purerl.algos.parts.elementwise import add_eps, alike, narrowed, square_root, widened
from purerl.algos.parts.episodes import join_episodes, rows_in_part, rows_of_episodes
from purerl.algos.parts.groups import group_index, group_std, group_std_of_others
from purerl.algos.parts.rows import first_counted, last_counted, row_mean
from purerl.algos.parts.whiten import center, standard_deviation
from purerl.batch import collate
from tests.golden.helpers import assert_values, f64, gradient_of, ints, mask_of


def test_a_divisor_is_above_0_in_every_dtype() -> None:
    """float16 has no 1e-8: its smallest normal number is 2^-14."""
    assert add_eps(torch.tensor([3.0, 0.0], dtype=torch.float64), 0.5).tolist() == [3.5, 0.5]
    assert add_eps(torch.tensor([0.0], dtype=torch.float16), 1e-8).tolist() == [2.0**-14]


def test_values_in_16_bits_are_widened_and_narrowed_again() -> None:
    half = torch.tensor([40000.0, 40000.0], dtype=torch.float16)
    assert narrowed(widened(half).mean(), half).item() == 40000
    for dtype, wide in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.int64, torch.int64)):
        assert widened(torch.ones(1, dtype=dtype)).dtype == wide
    assert narrowed(torch.tensor(0.5), torch.ones(1, dtype=torch.int64)).item() == 0.5


def test_values_that_are_alike_are_returned() -> None:
    tokens, scalar = torch.ones(2, 1), torch.tensor(3.0)
    assert alike(tokens, torch.ones(2, 4)) is tokens
    assert alike(scalar, tokens) is scalar


def test_square_root_has_the_gradient_0_at_0() -> None:
    square = f64([4.0, 0.25, 0.0]).requires_grad_()
    root = square_root(square)
    assert_values(root, [2.0, 0.5, 0.0])
    assert_values(torch.autograd.grad(root.sum(), square)[0], [0.25, 1.0, 0.0])


LOSS = f64([2.0, 4.0, math.nan], [6.0, math.nan, math.nan])
MASK = LOSS.isfinite()


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (token_sum, 12.0),
        (token_mean, 12 / 5),  # the step has 5 tokens in 3 rows; these are a part of it
        (sequence_mean_of_token_mean, (3 + 6) / 3),
        (sequence_mean_of_token_sum, 12 / 3),
        (lambda *of: constant_norm(*of, length=8.0), 12 / 24),
    ],
)
def test_reductions(reduce, expected):
    counts = Counts(torch.tensor(5), torch.tensor(3))
    torch.testing.assert_close(reduce(LOSS, MASK, counts), f64(expected)[0])
    none = Counts(torch.tensor(0), torch.tensor(0))
    gradient = gradient_of(lambda x: reduce(x, torch.zeros_like(MASK), none), torch.ones(2, 3))
    assert not gradient.any()


def test_rows_of_episodes():
    """Three rows of two episodes: one has the tokens of the last row, then those of the first."""
    rows = [(5, 9, [0, 1, 2]), (3, -1, [0, 4]), (4, 9, [0, 8, 16, 32])]
    batch = collate(
        [
            dict(tokens=[0] * len(r), action=[0, *[1] * (len(r) - 1)], row=k, group=7, episode=e, reward=r)
            for k, e, r in rows
        ]
    )
    joined, index = join_episodes(batch, ("reward",), None)
    assert joined["reward"].tolist() == [[4, 0, 0, 0, 0], [8, 16, 32, 1, 2]]
    assert joined["mask"].tolist() == [[True, False, False, False, False], [True] * 5]
    assert rows_of_episodes(torch.tensor([0.25, 0.5]), index).tolist() == [0.5, 0.25, 0.5]
    assert rows_of_episodes(torch.tensor([0.25, 0.5, 1.0]), None).tolist() == [0.25, 0.5, 1.0]
    assert rows_in_part(batch["mask"], None) == 3
    tokens = torch.tensor([5, 1, 5])
    assert [float(rows_in_part(batch["mask"][k : k + 1], tokens[k : k + 1])) for k in range(3)] == [0.4, 1.0, 0.6]
    counts = Counts(torch.tensor(6), torch.tensor(2), tokens)
    mean = sequence_mean_of_token_mean(batch["reward"].double(), batch["mask"], counts)
    torch.testing.assert_close(mean, f64((59 / 5 + 4) / 2)[0])


def test_weights_of_prompts():
    mask, none = mask_of("xx.", "x..", "...", "xxx", "..."), torch.zeros(2, 3, dtype=torch.bool)
    group = torch.tensor([5, 5, 5, -9, 8])
    assert prompt_weight(group, mask).tolist() == [1.0, 1.0, 0.0, 1.0, 0.0], "6 tokens: 3 of each of two prompts"
    mask[3, 1:] = False
    assert prompt_weight(group, mask).tolist() == pytest.approx([2 / 3, 2 / 3, 0.0, 2.0, 0.0])
    assert not prompt_weight(group[:2], none).any()


@pytest.mark.parametrize("function", [group_sum, group_max])
def test_every_row_gets_the_statistic_of_its_group(function):
    actual = function(torch.tensor([1.0, 2.0, 4.0, -8.0]), torch.tensor([5, -9, 5, 5]))
    assert actual.tolist() == {group_sum: [-3.0, 2.0, -3.0, -3.0], group_max: [4.0, 2.0, 4.0, 4.0]}[function]


GROUP = ints(5, -9, 5, 5)


def test_group_statistics():
    assert group_index(ints(7, -3, 7, 100)).tolist() == [1, 0, 1, 2]
    assert_values(group_size(mask_of("xx.x")[0], GROUP, dtype=torch.float64), 2, 1, 2, 2)
    assert_values(group_deviation(f64(3, 1, 99, 9), GROUP, mask_of("xx.x")[0]), -3, 0, 0, 3)
    assert_values(group_mean(f64(3, 1, 99, 9), GROUP, mask_of("xx.x")[0]), 6, 1, 6, 6)
    assert_values(group_token_max(f64([1, 40], [2, 20], [4, 10], [0, 0]), GROUP), [4, 40], [2, 20], [4, 40], [4, 40])
    assert_values(group_token_sum(f64([1, 10], [2, 20], [4, 40], [0, 0]), GROUP), [5, 50], [2, 20], [5, 50], [5, 50])


def test_group_standard_deviations():
    """1, 2 and 6 have deviations with the squares 4, 1, 9. Without 1, 2 or 6 the sum of squares is 8, 12.5 or 0.5."""
    score, group, counted = f64(1, 8, 2, 99, 6, 3, 3), ints(5, -9, 5, 5, 5, 0, 0), mask_of("xxx.xxx")[0]
    std, others = group_std(score, group, counted, ddof=1), group_std_of_others(score, group, counted, ddof=1)
    assert_values(std, *[math.sqrt(7), 0] + [math.sqrt(7)] * 3 + [0, 0])
    assert_values(others[[0, 1, 2, 4, 5, 6]], math.sqrt(8), 0, math.sqrt(12.5), math.sqrt(0.5), 0, 0)
    std, others = group_std(score, group, counted, ddof=0), group_std_of_others(score, group, counted, ddof=0)
    assert_values(std[:2], math.sqrt(14 / 3), 0)
    assert_values(others[[0, 2, 4]], 2, 2.5, 0.5)


def test_row_statistics():
    x, mask = f64([9, 1, 3, 9], [7, 9, 5, 5]), mask_of(".xx.", "....")
    assert_values(row_mean(x, mask), 2, 0)
    assert_values(first_counted(x, mask), 1, 0)
    assert_values(last_counted(x, mask), 3, 0)
    assert_values(broadcast_to_tokens(f64(4, 5), mask), [0, 4, 4, 0], [0, 0, 0, 0])


def test_batch_statistics():
    """1, 2 and 6 have the mean 3 and the deviations -2, -1, 3. The squares sum to 14, so the variance is 14 / 2."""
    x, mask, root = f64([1, 2], [6, 99]), mask_of("xx", "x."), math.sqrt(7)
    assert_values(center(x, mask), [-2, -1], [3, 0])
    assert_values(standard_deviation(x, mask)[None], root)
    assert_values(standard_deviation(x, mask, ddof=0)[None], math.sqrt(14 / 3))
    assert_values(
        whiten(x, mask, eps=1.0, ddof=0),
        [-2 / (1 + math.sqrt(14 / 3)), -1 / (1 + math.sqrt(14 / 3))],
        [3 / (1 + math.sqrt(14 / 3)), 0],
    )
    assert_values(whiten(x, mask), [-2 / root, -1 / root], [3 / root, 0], atol=1e-7)
    assert_values(whiten_rows(f64(1, 2, 6, 99), mask_of("xxx.")[0]), -2 / root, -1 / root, 3 / root, 0, atol=1e-7)


def test_group_log_softmax_leaves_out_rows_that_are_not_counted():
    x, counted = f64(3, 1, 9, 5, 1).log() + 1e3, mask_of("xx.xx")[0]
    actual = group_log_softmax(x, ints(7, 7, 7, 2, -4), counted)
    assert_values(actual, math.log(3 / 4), math.log(1 / 4), 0, 0, 0, atol=1e-9)
    gradient = gradient_of(lambda y: group_log_softmax(y, ints(7, 7, 7, 2, -4), counted)[:1], x)
    assert_values(gradient, 1 / 4, -1 / 4, 0, 0, 0, atol=1e-9)
