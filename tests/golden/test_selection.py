"""Selection and resampling of rows and tokens, and the overlong penalty, on small inputs."""

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
from tests.golden.helpers import assert_values, f64, mask_of


def test_top_k_mask_includes_ties():
    x = f64([1, 3, 2, 9, 2])
    assert top_k_mask(x, mask_of("xxx.x"), torch.tensor(2)).tolist() == mask_of(".xx.x").tolist()


def test_sampled_covariance_selects_the_largest_noise():
    # The deviations of logp are -1, 0, 1 and of A are -2, 0, 2, so the covariances are 2, 0, 2. A third of three tokens
    # is one token.
    logp, advantage, noise = f64([-3, -2, -1]), f64([-1, 1, 3]), f64([0.4, 0.9, 0.6])
    actual = sampled_covariance_tokens(logp, advantage, noise, mask_of("xxx"), fraction=0.34, cov_low=1.0, cov_high=5.0)
    assert actual.tolist() == mask_of("..x").tolist()


def test_resample_draws_rows_by_cumulative_weight():
    # In the order of their noise, the rows with the weights 1, 3 and 4 have the intervals [0, 1), [1, 4) and [4, 8).
    # The draws .05 * 8, .2 * 8 and .9 * 8 lie in the first, second and third interval, .4 * 8 lies in the second.
    noise, counted = f64(0.9, 0.05, 0.2, 0.0), mask_of("xxx.")[0]
    assert_values(resample(f64(4, 1, 3, 9), noise, counted), 1, 1, 1, 0)
    assert_values(resample(f64(4, 1, 3, 9), f64(0.4, 0.05, 0.2, 0.0), counted), 0, 1, 2, 0)


def test_at_last_action_writes_to_the_last_action_token():
    assert_values(at_last_action(f64(5, 7), mask_of(".xx.x.", "......")), [0, 0, 0, 0, 5, 0], [0] * 6)


def test_has_variance_ignores_uncounted_rows():
    score = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 3.0])
    group, counted = torch.tensor([1, 1, 1, 2, 2, 3, 3]), torch.tensor([True] * 6 + [False])
    assert has_variance(score, group, counted).tolist() == [False] * 3 + [True] * 2 + [False] * 2


def test_has_mean_in_range_excludes_the_bounds():
    score, group = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 9.0]), torch.tensor([1, 1, 2, 2, 3, 3, 3])
    counted = torch.tensor([True] * 6 + [False])
    assert has_mean_in_range(score, group, counted, low=0.0, high=1.0).tolist() == [True] * 2 + [False] * 5
    assert not has_mean_in_range(score, group, counted, low=0.5, high=1.0)[:2].any()


def test_low_entropy_tokens_does_not_select_ties():
    entropy = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert low_entropy_tokens(entropy, entropy < 9, top_fraction=0.5).tolist() == [[False, False, False, True]]


def test_second_moment_outliers_includes_ties():
    x = torch.tensor([[0.1, 0.5, -0.5, 0.5]], dtype=torch.float64)
    actual = second_moment_outliers(x, torch.zeros_like(x), x.sign(), x < 9, moment_bound=0.15)
    assert actual.tolist() == [[False, True, True, True]]


def test_high_covariance_tokens_includes_ties():
    logp, advantage = torch.tensor([[1.0, 2.0], [2.0, -5.0]]), torch.tensor([[1.0, 1.0], [1.0, -3.0]])
    selected = high_covariance_tokens(logp, advantage, torch.ones(2, 2) > 0, top_fraction=0.5)
    assert selected.tolist() == [[False, True], [True, True]]


def test_resampling_weights():
    score, counted = torch.tensor([-2.0, 1.0, 0.0, 9.0]), torch.tensor([True, True, True, False])
    torch.testing.assert_close(power_weight(score, power=2.0), torch.tensor([4.0, 1.0, 1e-8, 81.0]))
    assert extreme_weight(score, counted).tolist() == [1.0, 1.0, 0.0, 0.0]
    torch.testing.assert_close(best_weight(score, counted), torch.tensor([0.1, 0.4, 0.1, 0.1]))


def test_overlong_penalty_is_at_the_last_action_token():
    [length] = torch.tensor([[10.0, 80.0, 85.0, 100.0, 120.0]])
    actual = overlong_penalty(length, max_length=100, buffer=20, factor=2.0)
    torch.testing.assert_close(actual, torch.tensor([0.0, 0.0, -0.5, -2.0, -2.0]))
    batch = collate([dict(tokens=[0] * 5, action=[0, 1, 0, 1, 0], row=0, group=0, reward=[0, 0, 0, 1, 0])])
    _, batch = overlong_in_reward(max_length=2, buffer=1, factor=0.5).apply((), batch)
    assert batch["reward"].tolist() == [[0, 0, 0, 0.5, 0]]
