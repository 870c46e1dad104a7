"""Losses of whole rows, with manually computed values."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos import advantage_regression, gvpo_loss, sppo_loss, target_cross_entropy
from purerl.algos.flowrl import balance_loss, clipped_row_weight
from purerl.algos.parts.preferences import bradley_terry_loss, centering_loss, pair_difference
from purerl.algos.parts.rows import at_last_action
from purerl.algos.prime import implicit_reward_loss, leave_one_out_process
from tests.golden.helpers import assert_values, f64, gradient_of, ints, mask_of


def test_pair_difference_is_that_of_the_chosen_row_minus_that_of_the_rejected_row():
    actual = pair_difference(f64(1, 4, 2, -1), mask_of("x..x")[0], ints(5, 5, 3, 3))
    assert_values(actual, -3, -3, -3, -3)


def test_bradley_terry_loss_with_a_margin():
    # sigmoid(log 3) = 3/4, and its derivative of -log is -(1 - 3/4).
    assert_values(bradley_terry_loss(f64(math.log(3) + 2, 2 - math.log(3)), 2.0), -math.log(3 / 4), -math.log(1 / 4))
    gradient = gradient_of(lambda x: bradley_terry_loss(x, 2.0), f64(math.log(3) + 2, 2 - math.log(3)))
    assert_values(gradient, -0.25, -0.75)


def test_centering_loss_is_the_squared_sum_of_the_scores():
    assert_values(centering_loss(f64(3, -0.5)), 9, 0.25)
    assert_values(gradient_of(centering_loss, f64(3, -0.5)), 6, -1)


def test_gvpo_loss_of_two_rows():
    # The deviations of L, 1 and -1, minus A = 1/2, -1/2 are 1/2, -1/2. Their squares are 1/4, times N / (2 (N - 1)) =
    # 1.
    assert_values(gvpo_loss(f64(2, 0), f64(0.5, -0.5), ints(5, 5), mask_of("xx")[0], beta=1.0), 0.25, 0.25)


def test_leave_one_out_process_subtracts_the_means_of_the_other_rows():
    # The row means are 2 and 6, and N / (N - 1) = 2: the result is 2 p - 8.
    actual = leave_one_out_process(f64([1, 3], [6, 0]), ints(5, 5), mask_of("xx", "x."))
    assert_values(actual, [-6, -2], [4, 0])


def test_implicit_reward_loss_is_a_cross_entropy():
    # sigmoid(log 3) = 3/4
    actual = implicit_reward_loss(f64(math.log(9)).repeat(2), f64(1, 0), beta=0.5)
    assert_values(actual, -math.log(3 / 4), -math.log(1 / 4))


def test_sppo_loss_has_its_minimum_at_eta_times_the_advantage():
    assert sppo_loss(f64(5.0, 4.0), f64(0.5, 0.5), eta=10.0).tolist() == [0.0, 1.0]
    assert gradient_of(lambda x: sppo_loss(x, f64(0.5), eta=10.0), f64(4.0)).tolist() == [-2.0]


def test_advantage_regression_has_its_minimum_at_the_advantage_divided_by_beta():
    # (0.5 * 4 - 2)^2 = 0, (0.5 * 4 - 1)^2 = 1, and the derivatives are 2 * 0.5 * 0 and 2 * 0.5 * 1.
    log_ratio, advantage = f64(4, 4), f64(2, 1)
    assert_values(advantage_regression(log_ratio, advantage, beta=0.5), 0, 1)
    assert_values(gradient_of(lambda x: advantage_regression(x, advantage, beta=0.5), log_ratio), 0, 1)


def test_flowrl_balance_loss_minimum_and_detached_weight():
    assert gradient_of(lambda x: balance_loss(x, f64(2.0), f64(0.5), beta=6.0), f64(1.0)).tolist() == [0.0]
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    weight = clipped_row_weight(logp, torch.zeros(1, 2), torch.ones(1, 2) > 0, clip_low=0.2, clip_high=0.2)
    assert weight.tolist() == pytest.approx([0.8])
    assert not weight.requires_grad


def test_at_last_action_of_a_row_without_actions_is_zero():
    action = torch.tensor([[False, True, True, False], [False] * 4])
    assert at_last_action(torch.tensor([3.0, 5.0]), action).tolist() == [[0, 0, 3, 0], [0] * 4]


def test_target_cross_entropy_of_three_rows():
    """Old probabilities of 1/2, 1/4 and 1/4 with the tilts 1, 2 and 4 have the target 1/4, 1/4, 1/2."""
    old, advantage = f64(0.5, 0.25, 0.25).log() - 3, 0.5 * f64(1, 2, 4).log()
    logp, group, counted = f64(0.25, 0.25, 0.5).log() - 7, ints(5, 5, 5), mask_of("xxx")[0]

    def loss(x):
        return target_cross_entropy(x, old, advantage, group, counted, eta=0.5)

    entropy = 1.5 * math.log(2)
    assert_values(loss(logp), entropy, entropy, entropy)
    assert_values(gradient_of(loss, logp) / 3, 0, 0, 0)
    # The policy 1/3, 1/3, 1/3 has the gradient p - q, once for each of the three rows.
    assert_values(gradient_of(loss, f64(-2, -2, -2)) / 3, 1 / 3 - 1 / 4, 1 / 3 - 1 / 4, 1 / 3 - 1 / 2)


def test_target_cross_entropy_has_no_gradient_in_a_group_of_one_row_and_at_uncounted_rows():
    group, counted, zero = ints(5, 5, 3, 4), mask_of("x.x.")[0], f64(0, 0, 0, 0)
    loss = target_cross_entropy(f64(-1, -9, -2, -3), zero, zero, group, counted, eta=1.0)
    assert_values(loss, 0, 0, 0, 0)
    gradient = gradient_of(lambda x: target_cross_entropy(x, zero, zero, group, counted, eta=1.0), f64(-1, -9, -2, -3))
    assert_values(gradient, 0, 0, 0, 0)
