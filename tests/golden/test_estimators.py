"""Advantages of whole rows: small groups, with the arithmetic beside them."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from purerl.algos import (
    batch_normalized_advantage,
    component_normalized_advantage,
    gpg_advantage,
    group_centered_advantage,
    group_normalized_advantage,
    leave_one_out_advantage,
    leave_one_out_max_advantage,
    length_weighted_advantage,
    mean_normalized_advantage,
    optimal_token_advantage,
    pass_k_advantage,
    singleton_score,
    step_relative_advantage,
    table_lookup,
    update_beta_counts,
    update_moving_average,
    weighted_sum,
    win_rate_advantage,
)
from purerl.algos.estimators.steps import find_steps
from purerl.errors import ConfigError
from tests.golden.hand import close, f64, ints, logs, where

ONE_IN_FOUR, FOUR, ALL = f64(1, 0, 0, 0), ints(5, 5, 5, 5), torch.ones(4) > 0


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # The deviations are .75 and -.25; their squares sum to .75, and sqrt(.75 / 3) = 1/2.
        (group_centered_advantage, [0.75, -0.25]),
        (group_normalized_advantage, [1.5, -0.5]),
        (leave_one_out_advantage, [1, -1 / 3]),  # 1 - 0, and 0 - 1/3
        (batch_normalized_advantage, [1.5, -0.5]),  # one group is the batch
        (mean_normalized_advantage, [3, -1]),  # the mean is 1/4
        (gpg_advantage, [0.75, -0.25]),  # every group varies
        (win_rate_advantage, [3 / 8, -1 / 8]),  # 3 wins and a tie with itself, of 4: 7/8; 3 ties and itself: 3/8
        (leave_one_out_max_advantage, [1, 0]),  # without it the best is 0
        # R = 1 - C(3,2)/C(4,2) = 1/2 and s = 1/2: (1 - R)/s = 1; (1 - R - C(2,1)/C(3,1))/s = -1/3 (2508.10751)
        (functools.partial(pass_k_advantage, k=2), [1, -1 / 3]),
        # The baseline is (4 * 1 + 1 + 1 + 2) / 8 with only the first row right: 4/8.
        (lambda s, g, c: length_weighted_advantage(s, f64(4, 1, 1, 2), g, c), [1 / 2, -1 / 2]),
    ],
)
def test_one_right_answer_in_four(estimator, expected):
    right, wrong = expected
    close(estimator(ONE_IN_FOUR, FOUR, ALL), right, wrong, wrong, wrong, digits=4e-6)


def test_two_groups_and_the_batch():
    """Scores 3, 1 and 5, 5: the second group does not vary."""
    score, group = f64(3, 1, 5, 5), ints(7, 7, -2, -2)
    # Over the batch the mean is 3.5, the squares of the deviations sum to 11, the standard deviation is sqrt(11 / 3).
    close(batch_normalized_advantage(score, group, ALL), *(x / math.sqrt(11 / 3) for x in (1, -1, 0, 0)), digits=1e-6)
    close(gpg_advantage(score, group, ALL), 2, -2, 0, 0)  # rows: 4, of groups that vary: 2


def test_a_row_that_does_not_count_is_absent():
    counted = where("xxx.")[0]
    close(group_centered_advantage(f64(1, 0, 2, 99), FOUR, counted), 0, -1, 1, 0)
    close(leave_one_out_advantage(f64(1, 0, 2, 99), FOUR, counted), 0, -1.5, 1.5, 0)


def test_the_best_of_a_group_is_worth_what_it_adds():
    close(leave_one_out_max_advantage(f64(5, 3, 4, 9), ints(1, 1, 1, 2), ALL), 1, 0, 0, 0)


def test_components_weigh_by_their_weights_not_by_their_range():
    # Each component is 1/sqrt(2) and -1/sqrt(2) in a group of two, whatever its range: 2 x - 1 x.
    found = component_normalized_advantage(f64([1, 0], [0, 9]), ints(3, 3), ALL[:2], weights=(2.0, 1.0))
    close(found, 1 / math.sqrt(2), -1 / math.sqrt(2), digits=4e-6)
    close(weighted_sum(f64([1, 4]), weights=(1.0, 0.5)), 3)


# --- at each token -----------------------------------------------------------------------------------------------


def test_the_optimal_baseline_weighs_by_squared_gradients():
    # Uniform over two tokens: w = 1 - 2 (1/2) + 1/2 = 1/2. Uniform over four: w = 1 - 2 (1/4) + 1/4 = 3/4.
    # Step 1: (1/2 * 1 + 3/4 * 6) / (5/4) = 4. Step 2, of the sums 1 and 3/2: (1 * 1 + 3/2 * 6) / (5/2) = 4.
    both, yes = f64([1, 1], [6, 6]), where("xx", "xx")
    uniform = f64([1 / 2] * 2, [1 / 4] * 2)
    found = optimal_token_advantage(both, uniform.log(), uniform, yes, yes, ints(4, 4))
    close(found, [-3, -3], [2, 2], digits=1e-6)


def test_equal_returns_have_no_advantage_however_certain_the_tokens_are():
    yes, certain = where("xx", "xx"), f64([1, 1], [1, 1])  # so w = 1 - 2 + 1, and there is nothing to weigh by
    found = optimal_token_advantage(f64([5, 5], [5, 5]), certain.log(), certain, yes, yes, ints(4, 4))
    assert not found.any()


def test_a_token_that_only_one_row_reaches_has_no_advantage():
    yes, half = where("xx", "x."), f64([0.5, 0.5], [0.5, 0])
    found = optimal_token_advantage(f64([4, 3], [2, 0]), logs([0.5] * 2, [0.5] * 2), half, yes, yes, ints(4, 4))
    close(found, [1, 0], [-1, 0], digits=1e-6)  # step 1: the mean of 4 and 2
    # Not even if it is certain, has no weight, and so no baseline: w = 1 - 2 + 1.
    alone = where("x")
    close(optimal_token_advantage(f64([3]), f64([0]), f64([1]), alone, alone, ints(4)), [0])


def test_steps_begin_where_the_turn_changes():
    step, begins = find_steps(ints([0, 4, 4, 7, 9]), where(".xx.x"))
    assert step.tolist() == [[0, 0, 0, 0, 1]]
    assert begins.tolist() == where(".x..x").tolist()


def test_steps_from_one_state_are_compared():
    """Two rows of two steps, of one token each, and a discount of 1/2."""
    # To go: row 0 has 2 + 4/2 = 4 and 4, row 1 has 0 + 0 and 0. Both begin in state 8: 4 and 0, standard deviation
    # sqrt(8). Then row 0 is in state 9 and row 1 in state 8 again: 9 is met once, and 8 three times, by 4, 0 and 0:
    # the deviations 8/3, -4/3, -4/3 have the standard deviation sqrt(96/9/2) = 4/sqrt(3).
    yes = where("xx", "xx")
    found = step_relative_advantage(
        f64([2, 4], [0, 0]), ints([0, 1], [0, 1]), ints([8, 9], [8, 8]), ints(6, 6), yes, yes, discount=0.5
    )
    unit = 1 / math.sqrt(3)
    close(found, [2 * unit, 0], [-unit, -unit], digits=1e-6)


# --- with a memory -----------------------------------------------------------------------------------------------


def test_a_table_is_looked_up_and_moves_toward_what_it_sees():
    table = f64(0.5, 0.25, 1)
    close(table_lookup(table, ints(2, 0, 0)), 1, 0.5, 0.5)
    # Place 0: two rows with the mean 1/2, decay 1/4: 1/4 * 1/2 + 3/4 * 1/2. Place 1: one row that counts: 1/8 + 1/2.
    found = update_moving_average(table, f64(1, 0, 1, 9), ints(0, 0, 1, 1), where("xxx.")[0], decay=0.5)
    close(found, 0.5, 0.625, 1)


def test_components_have_a_weight_each_or_none():
    close(weighted_sum(f64([1, 4, 9]), weights=(1.0, 0.5, 2.0)), 21)
    for weights in ((2.0,), (2.0, 1.0)):
        with pytest.raises(ConfigError, match="need: 3, one for each component"):
            weighted_sum(f64([1, 4, 9]), weights=weights)


def test_a_mean_that_is_not_positive_gives_nothing():
    yes, group = torch.tensor([True, True]), torch.tensor([0, 0])
    for score in ([0.0, 0.0], [-1.0, 0.5], [-2.0, -3.0]):
        assert not mean_normalized_advantage(torch.tensor(score), group, yes).any()
    # In float32 these add up to 7e-9, and not to 0.
    noise = torch.tensor([0.3, -0.1, -0.2])
    assert noise.sum() > 0
    assert not mean_normalized_advantage(noise, torch.tensor([0, 0, 0]), torch.tensor([True] * 3)).any()


def test_a_single_row_keeps_its_score_if_it_counts():
    score, group = torch.tensor([1.0, 0.0, 0.7, 9.0]), torch.tensor([1, 1, 2, 2])
    counted = torch.tensor([True, True, True, False])
    torch.testing.assert_close(
        singleton_score(score, group, counted, estimator=group_centered_advantage),
        torch.tensor([0.5, -0.5, 0.7, 0.0]),
    )


def test_without_weights_each_component_weighs_one():
    assert weighted_sum(torch.tensor([[1.0, 2.0, 4.0]]), weights=()).tolist() == [7.0]


def test_successes_and_failures_are_counted_and_forgotten():
    alpha, beta = torch.full((3,), 4.0), torch.full((3,), 2.0)
    score = torch.tensor([1.0, 0.0, 0.5, 1.0])
    found = update_beta_counts(alpha, beta, score, ints(2, 0, 2, 0), where("xxx.")[0], decay=0.5)
    assert [x.tolist() for x in found] == [[2.0, 4.0, 3.5], [2.0, 2.0, 1.5]]
