"""Diagnostics with manually computed values."""

from __future__ import annotations

import math

import pytest

from purerl.algos.diagnostics import (
    chi_square,
    clip_fraction,
    explained_variance,
    gradient_cosine,
    gradient_noise_scale,
    token_average,
)
from purerl.errors import InputError
from tests.golden.helpers import assert_values, f64, mask_of

RATIO, MASK, NONE = f64([2, 0.5, 9], [1, 9, 9]), mask_of("xx.", "x.."), mask_of("...", "...")


def test_token_average_is_over_counted_tokens():
    assert float(token_average(RATIO, MASK)) == pytest.approx(3.5 / 3)
    assert float(token_average(RATIO, NONE)) == 0


def test_chi_square_is_the_expected_square_of_the_deviation_from_1():
    # p = (1/2, 1/2), q = (1/4, 3/4): sum p^2 / q - 1 = 1 + 1/3 - 1, with one token of q's first kind for three others.
    assert float(chi_square(f64([2, 2 / 3, 2 / 3, 2 / 3]), mask_of("xxxx"))) == pytest.approx(1 / 3)
    assert float(chi_square(RATIO, MASK)) == pytest.approx(1.25 / 3)


def test_clip_fraction_depends_on_the_sign_of_the_advantage():
    # Clipped: a ratio of 2 with a positive advantage. Not: one of 0.5 with a positive one, and one of 1.
    fraction = clip_fraction(RATIO, f64([1, 1, 1], [1, 1, 1]), MASK, clip_low=0.2, clip_high=0.2)
    assert float(fraction) == pytest.approx(1 / 3)


def test_explained_variance():
    returns, mask = f64([0, 2, 50]), mask_of("xx.")
    assert float(explained_variance(returns + 7, returns, mask)) == 1
    assert float(explained_variance(f64([3, 3, 0]), returns, mask)) == 0
    assert float(explained_variance(-returns, returns, mask)) == -3
    assert float(explained_variance(returns, f64([1, 1, 1]), mask)) == 0


def test_gradient_noise_scale():
    # Gradients of the mean: n g = (3, 1), with the mean 2, the variance 2, and (mean)^2 - variance / n = 3.
    assert float(gradient_noise_scale(f64(1.5, 0.5), f64(2)[0])) == pytest.approx(2 / 3)
    # n g = (1, -1): no signal.
    assert float(gradient_noise_scale(f64(0.5, 0.5), f64(0)[0])) == math.inf
    with pytest.raises(InputError, match="got:  1 rows\n  need: at least 2"):
        gradient_noise_scale(f64(1), f64(1)[0])


def test_gradient_cosine_is_over_all_parameters():
    first, second = {"a": f64(3), "b": f64(4, 0)}, {"b": f64(1, 0), "a": f64(0)}
    assert_values(gradient_cosine(first, second).unsqueeze(0), 0.8)
    assert float(gradient_cosine(first, {"a": f64(0), "b": f64(0, 0)})) == 0
