"""Advantages of small groups, with the computation in comments."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from purerl.algos import (
    batch_normalized_advantage,
    best_of_group_advantage,
    component_normalized_advantage,
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    group_standardized_advantage,
    history_advantage,
    leave_one_out_advantage,
    leave_one_out_max_advantage,
    length_weighted_advantage,
    mean_normalized_advantage,
    optimal_group_advantage,
    optimal_token_advantage,
    optimal_value,
    pass_k_advantage,
    prompt_value,
    ranked_advantage,
    singleton_score,
    spread_progress,
    step_relative_advantage,
    sum_by_entry,
    table_lookup,
    update_beta_counts,
    update_moving_average,
    weighted_sum,
    win_rate,
    win_rate_advantage,
    with_hacks_at_minimum,
)
from purerl.algos.estimators.steps import find_steps
from purerl.algos.estimators.trackers import update_moments
from purerl.errors import ConfigError
from tests.golden.helpers import assert_values, f64, gradient_of, ints, logs, mask_of

ONE_IN_FOUR, FOUR, ALL = f64(1, 0, 0, 0), ints(5, 5, 5, 5), torch.ones(4) > 0


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # The deviations are .75 and -.25; their squares sum to .75, and sqrt(.75 / 3) = 1/2.
        (group_centered_advantage, [0.75, -0.25]),
        (group_normalized_advantage, [1.5, -0.5]),
        (group_standardized_advantage, [math.sqrt(3), -1 / math.sqrt(3)]),  # sqrt(.75 / 4) = sqrt(3) / 4
        (best_of_group_advantage, [4, 0]),
        (leave_one_out_advantage, [1, -1 / 3]),  # 1 - 0, and 0 - 1/3
        (batch_normalized_advantage, [1.5, -0.5]),  # one group is the batch
        (mean_normalized_advantage, [3, -1]),  # the mean is 1/4
        (gpg_advantage, [0.75, -0.25]),  # every group has variance
        (win_rate_advantage, [3 / 8, -1 / 8]),  # 3 wins and a tie with itself, of 4: 7/8; 3 ties and itself: 3/8
        (leave_one_out_max_advantage, [1, 0]),  # without the first row, the maximum is 0
        # R = 1 - C(3,2)/C(4,2) = 1/2 and s = 1/2: (1 - R)/s = 1; (1 - R - C(2,1)/C(3,1))/s = -1/3 (2508.10751)
        (functools.partial(pass_k_advantage, k=2), [1, -1 / 3]),
        # The lengths sum to 8, and only the first row, of length 4, has a score: the baseline is 4/8.
        (lambda s, g, c: length_weighted_advantage(s, f64(4, 1, 1, 2), g, c), [1 / 2, -1 / 2]),
    ],
)
def test_one_correct_row_in_four(estimator, expected):
    correct, incorrect = expected
    assert_values(estimator(ONE_IN_FOUR, FOUR, ALL), correct, incorrect, incorrect, incorrect, atol=4e-6)


def test_batch_statistics_of_two_groups():
    """The scores are 3, 1 and 5, 5: the second group has no variance."""
    score, group = f64(3, 1, 5, 5), ints(7, 7, -2, -2)
    # The mean of the batch is 3.5, the squared deviations sum to 11, and the standard deviation is sqrt(11 / 3).
    expected = [x / math.sqrt(11 / 3) for x in (1, -1, 0, 0)]
    assert_values(batch_normalized_advantage(score, group, ALL), *expected, atol=1e-6)
    assert_values(gpg_advantage(score, group, ALL), 2, -2, 0, 0)  # 4 rows, 2 rows of groups with variance


def test_uncounted_row_has_no_effect():
    counted = mask_of("xxx.")[0]
    assert_values(group_centered_advantage(f64(1, 0, 2, 99), FOUR, counted), 0, -1, 1, 0)
    assert_values(leave_one_out_advantage(f64(1, 0, 2, 99), FOUR, counted), 0, -1.5, 1.5, 0)


def test_leave_one_out_max_advantage_is_the_lead_of_the_best_row():
    assert_values(leave_one_out_max_advantage(f64(5, 3, 4, 9), ints(1, 1, 1, 2), ALL), 1, 0, 0, 0)


def test_effect_of_a_component_depends_on_its_weight_not_on_its_range():
    # In a group of two rows, each normalized component is 1/sqrt(2) and -1/sqrt(2) for any range: 2 x - 1 x.
    actual = component_normalized_advantage(f64([1, 0], [0, 9]), ints(3, 3), ALL[:2], weights=(2.0, 1.0))
    assert_values(actual, 1 / math.sqrt(2), -1 / math.sqrt(2), atol=4e-6)
    assert_values(weighted_sum(f64([1, 4]), weights=(1.0, 0.5)), 3)


# --- at each token -----------------------------------------------------------------------------------------------


def test_optimal_baseline_is_weighted_by_squared_gradients():
    # Uniform over two tokens: w = 1 - 2 (1/2) + 1/2 = 1/2. Uniform over four: w = 1 - 2 (1/4) + 1/4 = 3/4.
    # Step 1: (1/2 * 1 + 3/4 * 6) / (5/4) = 4. Step 2, of the sums 1 and 3/2: (1 * 1 + 3/2 * 6) / (5/2) = 4.
    returns, mask = f64([1, 1], [6, 6]), mask_of("xx", "xx")
    uniform = f64([1 / 2] * 2, [1 / 4] * 2)
    actual = optimal_token_advantage(returns, uniform.log(), uniform, mask, mask, ints(4, 4))
    assert_values(actual, [-3, -3], [2, 2], atol=1e-6)


def test_equal_returns_have_no_advantage_with_zero_weights():
    mask, certain = mask_of("xx", "xx"), f64([1, 1], [1, 1])  # every weight is w = 1 - 2 + 1 = 0
    actual = optimal_token_advantage(f64([5, 5], [5, 5]), certain.log(), certain, mask, mask, ints(4, 4))
    assert not actual.any()


def test_step_that_only_one_row_reaches_has_no_advantage():
    mask, half = mask_of("xx", "x."), f64([0.5, 0.5], [0.5, 0])
    actual = optimal_token_advantage(f64([4, 3], [2, 0]), logs([0.5] * 2, [0.5] * 2), half, mask, mask, ints(4, 4))
    assert_values(actual, [1, 0], [-1, 0], atol=1e-6)  # step 1: the mean of 4 and 2
    # The same holds for a token with probability 1, whose weight is w = 1 - 2 + 1 = 0.
    mask = mask_of("x")
    assert_values(optimal_token_advantage(f64([3]), f64([0]), f64([1]), mask, mask, ints(4)), [0])


def test_find_steps_starts_a_step_at_each_change_of_turn():
    step, is_start = find_steps(ints([0, 4, 4, 7, 9]), mask_of(".xx.x"))
    assert step.tolist() == [[0, 0, 0, 0, 1]]
    assert is_start.tolist() == mask_of(".x..x").tolist()


def test_step_relative_advantage_compares_steps_from_the_same_state():
    """Two rows with two steps of one token each, and a discount of 1/2."""
    # The returns of the steps are 2 + 4/2 = 4 and 4 in row 0, 0 and 0 in row 1. Row 0 is in the states 8 and 9, row 1
    # in the states 8 and 8. State 9 has one step. State 8 has three steps, with the returns 4, 0 and 0: the deviations
    # 8/3, -4/3, -4/3 have the standard deviation sqrt(96/9/2) = 4/sqrt(3).
    mask = mask_of("xx", "xx")
    actual = step_relative_advantage(
        f64([2, 4], [0, 0]), ints([0, 1], [0, 1]), ints([8, 9], [8, 8]), ints(6, 6), mask, mask, discount=0.5
    )
    unit = 1 / math.sqrt(3)
    assert_values(actual, [2 * unit, 0], [-unit, -unit], atol=1e-6)


# --- with state --------------------------------------------------------------------------------------------------


def test_moving_average_moves_toward_the_scores():
    table = f64(0.5, 0.25, 1)
    assert_values(table_lookup(table, ints(2, 0, 0)), 1, 0.5, 0.5)
    # Entry 0 has two rows with the mean 1/2, so the decay is 1/4: 1/4 * 1/2 + 3/4 * 1/2. Entry 1 has one counted row:
    # 1/8 + 1/2.
    actual = update_moving_average(table, f64(1, 0, 1, 9), ints(0, 0, 1, 1), mask_of("xxx.")[0], decay=0.5)
    assert_values(actual, 0.5, 0.625, 1)


def test_moments_of_two_batches_are_those_of_all_scores():
    """1 and 5, then 3: the means are 3 and 3. 1, 5 and 9: the mean is 5, the squares are 16, 0 and 16."""
    first = update_moments(*f64(0, 0, 0), f64(1, 99, 5), mask_of("x.x")[0])
    assert_values(torch.stack(first), 2, 3, 8)
    assert_values(torch.stack(update_moments(*first, f64(3), mask_of("x")[0])), 3, 3, 8)
    assert_values(torch.stack(update_moments(*first, f64(9), mask_of("x")[0])), 3, 5, 32)
    assert_values(torch.stack(update_moments(*first, f64(9), mask_of(".")[0])), 2, 3, 8)


def test_weights_have_one_number_per_component_or_none():
    assert_values(weighted_sum(f64([1, 4, 9]), weights=(1.0, 0.5, 2.0)), 21)
    for weights in ((2.0,), (2.0, 1.0)):
        with pytest.raises(ConfigError, match="need: 3, one for each component"):
            weighted_sum(f64([1, 4, 9]), weights=weights)


def test_mean_normalized_advantage_is_zero_if_the_mean_is_not_positive():
    counted, group = torch.tensor([True, True]), torch.tensor([0, 0])
    for score in ([0.0, 0.0], [-1.0, 0.5], [-2.0, -3.0]):
        assert not mean_normalized_advantage(torch.tensor(score), group, counted).any()
    # In float32 the sum of these is 7e-9 instead of 0.
    noise = torch.tensor([0.3, -0.1, -0.2])
    assert noise.sum() > 0
    assert not mean_normalized_advantage(noise, torch.tensor([0, 0, 0]), torch.tensor([True] * 3)).any()


def test_singleton_score_keeps_the_score_of_a_counted_row():
    score, group = torch.tensor([1.0, 0.0, 0.7, 9.0]), torch.tensor([1, 1, 2, 2])
    counted = torch.tensor([True, True, True, False])
    torch.testing.assert_close(
        singleton_score(score, group, counted, estimator=group_centered_advantage),
        torch.tensor([0.5, -0.5, 0.7, 0.0]),
    )


def test_empty_weights_are_ones():
    assert weighted_sum(torch.tensor([[1.0, 2.0, 4.0]]), weights=()).tolist() == [7.0]


def test_beta_counts_add_rows_and_decay():
    alpha, beta = torch.full((3,), 4.0), torch.full((3,), 2.0)
    score = torch.tensor([1.0, 0.0, 0.5, 1.0])
    actual = update_beta_counts(alpha, beta, score, ints(2, 0, 2, 0), mask_of("xxx.")[0], decay=0.5)
    assert [x.tolist() for x in actual] == [[2.0, 4.0, 3.5], [2.0, 2.0, 1.5]]


def test_best_of_group_advantage_selects_ties_but_no_row_of_a_group_with_equal_scores():
    score, group = f64(2, 2, 1, 5, 5, 3, 7), ints(1, 1, 1, 4, 4, 9, 1)
    assert_values(best_of_group_advantage(score, group, mask_of("xxxxxx.")[0]), 3, 3, 0, 0, 0, 0, 0)  # 6 / 2
    assert_values(best_of_group_advantage(score, group, mask_of("x..xx..")[0]), 0, 0, 0, 0, 0, 0, 0)


def test_group_standardized_advantage_is_zero_without_variance():
    score, group = f64(0.1, 0.1, 0.1, 3, 8), ints(1, 1, 1, 4, 4)
    assert_values(group_standardized_advantage(score, group, mask_of("xxxx.")[0]), 0, 0, 0, 0, 0)


def test_optimal_value_of_correct_and_wrong_completions():
    """With a fraction p of rewards 1 and the others 0, the value is beta log(1 - p + p exp(1 / beta))."""
    # beta = 1 / log 3, so exp(1 / beta) = 3: log(3/4 + 3/4) / log 3 for one in four, and log(1) for none.
    beta = 1 / math.log(3)
    assert_values(optimal_value(f64([1, 0, 0, 0], [0, 0, 0, 0]), beta=beta), math.log(1.5) / math.log(3), 0)
    assert_values(optimal_value(f64([2.5]), beta=beta), 2.5)


def test_gradient_of_optimal_value_is_the_optimal_policy_over_the_completions():
    """exp((reward - V) / beta) / n: 3/6 for the correct one, and 1/6 for each of the others."""
    actual = gradient_of(lambda reward: optimal_value(reward, beta=1 / math.log(3)), f64(1, 0, 0, 0))
    assert_values(actual, 1 / 2, 1 / 6, 1 / 6, 1 / 6)


def test_optimal_value_is_between_the_mean_and_the_maximum():
    reward = f64(-1, 0, 4, 2)
    values = [float(optimal_value(reward, beta=beta)) for beta in (1e-4, 0.5, 1.0, 3.0, 1e6)]
    assert values == sorted(values, reverse=True)
    assert (values[0], values[-1]) == pytest.approx((4, 1.25), abs=1e-3)
    shifted = optimal_value(reward + 7, beta=0.5)
    torch.testing.assert_close(shifted, optimal_value(reward, beta=0.5) + 7)
    torch.testing.assert_close(optimal_value(reward.repeat(3), beta=0.5), optimal_value(reward, beta=0.5))


def test_optimal_value_of_large_rewards_is_finite():
    assert_values(optimal_value(f64([1000, 0]), beta=1e-3), 1000 - 1e-3 * math.log(2))


# --- history, difficulty, ranking, progress ----------------------------------------------------------------------


def test_optimal_group_advantage_subtracts_the_soft_maximum():
    """Z = (e^(log 3) + e^0) / 2 = 2 with beta 1, so A = log 3 - log 2 and -log 2. exp(A) has the mean 1."""
    actual = optimal_group_advantage(f64(math.log(3), 0, 7), ints(5, 5, 9), mask_of("xxx")[0], beta=1.0)
    assert_values(actual, math.log(1.5), -math.log(2), 0)
    halved = optimal_group_advantage(f64(math.log(3) / 2, 0), ints(5, 5), mask_of("xx")[0], beta=0.5)
    assert_values(halved, math.log(1.5) / 2, -math.log(2) / 2)


def test_history_advantage_weights_correct_rows_by_how_rarely_the_prompt_is_solved():
    """p = 1/5: the correct row has 4/5, and each of the three others -(4/5) 1/3."""
    is_correct = mask_of("x...")[0]
    assert_values(history_advantage(is_correct, f64(0.2, 0.2, 0.2, 0.2), FOUR, ALL), 0.8, *[-0.8 / 3] * 3)
    assert_values(history_advantage(~mask_of("....")[0], f64(0.2, 0.2, 0.2, 0.2), FOUR, ALL), 0, 0, 0, 0)
    assert_values(history_advantage(mask_of("....")[0], f64(0.2, 0.2, 0.2, 0.2), FOUR, ALL), 0, 0, 0, 0)
    counted = mask_of("xx.x")[0]
    assert_values(history_advantage(is_correct, f64(0.5, 0.5, 0.5, 0.5), FOUR, counted), 0.5, -0.25, 0, -0.25)


def test_prompt_value_is_the_confidence_times_the_weight_of_the_difficulty():
    """c = sqrt(.5 * .125) = 1/4. One of two correct: d = 1/2, v = 1/4. One of four: d = 3/4, v = c (1 - 4/16)."""
    assert_values(prompt_value(logs(0.5, 0.125), mask_of("x.")[0], ints(5, 5), mask_of("xx")[0]), 0.25, 0.25)
    assert_values(prompt_value(logs(0.5, 0.5, 0.5, 0.5), mask_of("x...")[0], FOUR, ALL), *[0.375] * 4)
    assert_values(prompt_value(logs(0.5, 0.5), mask_of("xx")[0], ints(5, 5), mask_of("xx")[0]), 0, 0)


def test_win_rate_is_the_share_of_the_others_that_a_row_is_ranked_above():
    """Ranks 2, 1, 1: 1, and a tie for last, 1/4 each. A row without a rank has 1/2, and a row that is alone 1."""
    ranking, group = f64(2, 1, 1, math.nan, 3), ints(5, 5, 5, 5, 9)
    assert_values(win_rate(ranking, group, mask_of("xxxxx")[0]), 1, 0.25, 0.25, 0.5, 1)
    assert_values(win_rate(ranking, group, mask_of(".xx..")[0]), 0.5, 0.5, 0.5, 0.5, 0.5)


def test_with_hacks_at_minimum():
    score, group = f64(1, 0.25, 0, 2), ints(5, 5, 5, 9)
    assert_values(with_hacks_at_minimum(score, mask_of("x..x")[0], group, mask_of("xx.x")[0]), 0.25, 0.25, 0, 2)


def test_ranked_advantage_shares_positive_advantages_out():
    """Scores 1, 1, 0, 0: A = 1/2, 1/2, -1/2, -1/2. f = 1 and 1/2, so the scale is 1 / (3/4) = 4/3: 2/3 and 1/3."""
    score, ranking = f64(1, 1, 0, 0), f64(9, 1, 5, 7)
    actual = ranked_advantage(score, ranking, FOUR, ALL, min_factor=0.5, max_scale=2.0)
    assert_values(actual, 2 / 3, 1 / 3, -1 / 2, -1 / 2)
    # With a scale of 1: 1/2, 1/4, -1/2, -1/2, whose mean is -1/16.
    capped = ranked_advantage(score, ranking, FOUR, ALL, min_factor=0.5, max_scale=1.0)
    assert_values(capped, 9 / 16, 5 / 16, -7 / 16, -7 / 16)
    unranked = ranked_advantage(score, f64(*[math.nan] * 4), FOUR, ALL, min_factor=0.5, max_scale=2.0)
    assert_values(unranked, 1 / 2, 1 / 2, -1 / 2, -1 / 2)


def test_spread_progress_gives_each_change_to_its_turn_and_those_before_it():
    """Turns of 1, 2 and 1 tokens with the changes 1, 0 and 7, and a decay of 1/2.

    7 is divided as 1 : 2 : 4 among the turns 1, 2 and 3, and 1 stays at turn 1: 1 + 1, 2 and 4.
    """
    progress, turn, action = f64([0, 1, 0, 9, 0, 7]), ints([0, 0, 1, 1, 1, 2]), mask_of(".xx.xx")
    assert_values(spread_progress(progress, turn, action, decay=0.5), [0, 2, 2, 0, 2, 4])
    assert_values(spread_progress(progress, turn, action, decay=0.0), [0, 1, 0, 0, 0, 7])


def test_sum_by_entry():
    assert_values(sum_by_entry(f64(9, 9), f64(1, 2, 4), ints(1, 1, 0), mask_of("xx.")[0]), 0, 3)
