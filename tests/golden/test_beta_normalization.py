"""The normalization of BNPO, and the loss of DFT, with values by hand and from torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos.dft import probability_weighted_nll
from purerl.algos.estimators.beta_normalization import beta_log_density, beta_normalized_advantage, fitted_beta
from tests.golden.helpers import assert_values, f64, gradient_of, ints, logs, mask_of

GROUP = ints(5, 5, 5, 5, -2, -2, -2, -2)
ALL = mask_of("xxxxxxxx")[0]


def test_fitted_beta_has_a_third_of_the_parameters_of_the_moments():
    # The rates 1/4 and 3/4: the mean is 1/2 and the variance 1/8, so c = 2 - 1.
    alpha, beta = fitted_beta(f64(*[0.25] * 4, *[0.75] * 4), GROUP, ALL)
    assert_values(torch.cat([alpha[:1], beta[:1]]), 7 / 6, 7 / 6)
    # The rates 1/5 (of three rows) and 3/5 (of one): every prompt counts once. c = 2/5 * 3/5 / (2/25) - 1 = 2.
    alpha, beta = fitted_beta(f64(0.2, 0.2, 0.2, 0.6), ints(1, 1, 1, 2), mask_of("xxxx")[0])
    assert_values(torch.cat([alpha[:1], beta[:1]]), 1 + 2 * 0.4 / 3, 1 + 2 * 0.6 / 3)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_fitted_beta_without_variance_is_uniform(rate):
    alpha, beta = fitted_beta(f64(*[rate] * 8), GROUP, ALL)
    assert_values(torch.cat([alpha[:1], beta[:1]]), 1, 1)


def test_fitted_beta_is_bounded_from_below():
    # The rates 0 and 1: the variance is 1/2, so c = -1/2.
    alpha, beta = fitted_beta(f64(*[0.0] * 4, *[1.0] * 4), GROUP, ALL)
    assert_values(torch.cat([alpha[:1], beta[:1]]), 1, 1)


def test_beta_log_density():
    p, alpha, beta = f64(0.1, 0.5, 0.9), f64(1.5, 1.5, 1.5), f64(3, 3, 3)
    torch.testing.assert_close(beta_log_density(p, alpha, beta), torch.distributions.Beta(1.5, 3.0).log_prob(p))
    assert beta_log_density(f64(0, 1), alpha[:2], beta[:2]).tolist() == [-math.inf, -math.inf]
    assert_values(beta_log_density(f64(0, 1), f64(1, 1), f64(1, 1)), 0, 0)


def test_beta_normalized_advantage():
    """The density is divided by at both rates, and rows that are not counted have no effect."""
    score = f64(1, 0, 0, 0, 1, 1, 1, 0)
    density = torch.distributions.Beta(7 / 6, 7 / 6).log_prob(f64(0.25)).exp().item()
    expected = [0.75 / density, *[-0.25 / density] * 3, *[0.25 / density] * 3, -0.75 / density]
    assert_values(beta_normalized_advantage(score, GROUP, ALL, low=0.0, high=1.0), *expected, atol=1e-6)
    scaled = beta_normalized_advantage(10 * score - 2, GROUP, ALL, low=-2.0, high=8.0)
    assert_values(scaled, *expected, atol=1e-6)
    counted = mask_of("xxxxxxxx.")[0]
    nine = beta_normalized_advantage(
        torch.cat([score, f64(9)]), torch.cat([GROUP, ints(5)]), counted, low=0.0, high=1.0
    )
    assert_values(nine, *expected, 0, atol=1e-6)


def test_weight_at_a_density_of_0_is_bounded():
    """The scores of the third prompt, -1 and 1, are out of the range. Their mean is 0, where the density is 0."""
    score = f64(0.4, 0.4, 0.6, 0.6, -1, 1)
    actual = beta_normalized_advantage(score, ints(1, 1, 2, 2, 3, 3), mask_of("xxxxxx")[0], low=0.0, high=1.0)
    assert actual.isfinite().all()
    assert_values(actual[4:], -1e6, 1e6, atol=1e-6)


def test_probability_weighted_nll():
    logp = logs([0.5, 0.25])
    assert_values(probability_weighted_nll(logp), [math.log(2) / 2, math.log(4) / 4])
    assert_values(gradient_of(probability_weighted_nll, logp), [-0.5, -0.25])
    assert_values(probability_weighted_nll(f64([-math.inf])), [0])
