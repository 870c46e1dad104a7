"""Which rows and tokens are learned from, how often, and what a length costs: small enough to be seen."""

from __future__ import annotations

import torch

from purerl.algos import (
    best_weight,
    extreme_weight,
    has_mean_in_range,
    has_variance,
    high_covariance_tokens,
    low_entropy_tokens,
    overlong_penalty,
    power_weight,
    resample,
    sampled_covariance_tokens,
    second_moment_outliers,
)
from purerl.algos.parts.rows import at_last_action
from purerl.algos.parts.selection import top_k_mask
from purerl.algos.parts.shaping import overlong_in_reward
from purerl.batch import collate
from tests.golden.hand import close, f64, where


def test_the_largest_and_what_equals_the_last_of_them():
    x = f64([1, 3, 2, 9, 2])
    assert top_k_mask(x, where("xxx.x"), torch.tensor(2)).tolist() == where(".xx.x").tolist()


def test_of_all_tokens_in_the_band_those_of_largest_noise_are_drawn():
    # Deviations of logp -1, 0, 1 and of A -2, 0, 2: the covariances are 2, 0, 2. Of three tokens a third is one.
    logp, advantage, noise = f64([-3, -2, -1]), f64([-1, 1, 3]), f64([0.4, 0.9, 0.6])
    found = sampled_covariance_tokens(logp, advantage, noise, where("xxx"), fraction=0.34, cov_low=1.0, cov_high=5.0)
    assert found.tolist() == where("..x").tolist()


def test_numbers_draw_the_rows_in_whose_part_they_fall():
    # In the order of their noise the rows with the weights 1, 3 and 4 have the parts [0, 1), [1, 4) and [4, 8) of 8;
    # .05 * 8, .2 * 8 and .9 * 8 fall into the first, the second and the third of them, .4 * 8 into the second.
    noise, counted = f64(0.9, 0.05, 0.2, 0.0), where("xxx.")[0]
    close(resample(f64(4, 1, 3, 9), noise, counted), 1, 1, 1, 0)
    close(resample(f64(4, 1, 3, 9), f64(0.4, 0.05, 0.2, 0.0), counted), 0, 1, 2, 0)


def test_an_outcome_sits_on_the_last_action():
    close(at_last_action(f64(5, 7), where(".xx.x.", "......")), [0, 0, 0, 0, 5, 0], [0] * 6)


def test_a_group_varies_when_two_counted_scores_differ():
    score = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 3.0])
    group, counted = torch.tensor([1, 1, 1, 2, 2, 3, 3]), torch.tensor([True] * 6 + [False])
    assert has_variance(score, group, counted).tolist() == [False] * 3 + [True] * 2 + [False] * 2


def test_a_band_excludes_its_bounds():
    score, group = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 9.0]), torch.tensor([1, 1, 2, 2, 3, 3, 3])
    counted = torch.tensor([True] * 6 + [False])
    assert has_mean_in_range(score, group, counted, low=0.0, high=1.0).tolist() == [True] * 2 + [False] * 5
    assert not has_mean_in_range(score, group, counted, low=0.5, high=1.0)[:2].any()


def test_those_that_are_as_uncertain_as_the_last_stay():
    entropy = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert low_entropy_tokens(entropy, entropy < 9, top_fraction=0.5).tolist() == [[False, False, False, True]]


def test_what_equals_the_last_that_is_left_out_goes_with_it():
    moved = torch.tensor([[0.1, 0.5, -0.5, 0.5]], dtype=torch.float64)
    found = second_moment_outliers(moved, torch.zeros_like(moved), moved.sign(), moved < 9, moment_bound=0.15)
    assert found.tolist() == [[False, True, True, True]]


def test_those_that_equal_the_last_are_chosen_with_it():
    logp, advantage = torch.tensor([[1.0, 2.0], [2.0, -5.0]]), torch.tensor([[1.0, 1.0], [1.0, -3.0]])
    chosen = high_covariance_tokens(logp, advantage, torch.ones(2, 2) > 0, top_fraction=0.5)
    assert chosen.tolist() == [[False, True], [True, True]]


def test_weights_of_scores():
    score, counted = torch.tensor([-2.0, 1.0, 0.0, 9.0]), torch.tensor([True, True, True, False])
    torch.testing.assert_close(power_weight(score, power=2.0), torch.tensor([4.0, 1.0, 1e-8, 81.0]))
    assert extreme_weight(score, counted).tolist() == [1.0, 1.0, 0.0, 0.0]
    torch.testing.assert_close(best_weight(score, counted), torch.tensor([0.1, 0.4, 0.1, 0.1]))


def test_a_row_pays_for_its_length_at_its_last_action():
    [length] = torch.tensor([[10.0, 80.0, 85.0, 100.0, 120.0]])
    found = overlong_penalty(length, max_length=100, buffer=20, factor=2.0)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, -0.5, -2.0, -2.0]))
    batch = collate([dict(tokens=[0] * 5, action=[0, 1, 0, 1, 0], row=0, group=0, reward=[0, 0, 0, 1, 0])])
    _, batch = overlong_in_reward(max_length=2, buffer=1, factor=0.5).apply((), batch)
    assert batch["reward"].tolist() == [[0, 0, 0, 0.5, 0]]
