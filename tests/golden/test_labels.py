"""The parts of KTO, with values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from purerl.algos.parts.labels import kto_loss, matched_tokens, mismatched_kl
from tests.golden.helpers import assert_values, f64, gradient_of, mask_of

ALL = mask_of("xxxx")[0]
WEIGHTS = {"desirable_weight": 2.0, "undesirable_weight": 3.0}


def test_mismatched_kl_is_the_mean_over_mismatched_rows():
    assert_values(mismatched_kl(f64(9, 3, 1, 9), mask_of(".xx.")[0], ALL), 2, 2, 2, 2)


def test_mismatched_kl_leaves_out_rows_that_are_not_counted():
    assert_values(mismatched_kl(f64(9, 3, 1, 9), mask_of(".xx.")[0], mask_of("xx.x")[0]), 3, 3, 3, 3)


@pytest.mark.parametrize("mismatched", [".x..", "...."])
def test_mismatched_kl_is_not_negative_and_0_without_a_mismatched_row(mismatched: str):
    assert_values(mismatched_kl(f64(9, -3, 1, 9), mask_of(mismatched)[0], ALL), 0, 0, 0, 0)


def test_matched_tokens_are_those_of_the_other_rows():
    assert matched_tokens(mask_of("x.")[0], mask_of("xx.", ".xx")).tolist() == [[False] * 3, [False, True, True]]


def test_kto_loss():
    """At beta (L - z) = log 3 the sigmoid is 3/4."""
    log_ratio, desirable = f64(2 * math.log(3) + 1, 2 * math.log(3) + 1, 1, 1), mask_of("x.x.")[0]
    loss = kto_loss(log_ratio, desirable, f64(1, 1, 1, 1), beta=0.5, **WEIGHTS)
    assert_values(loss, 2 / 4, 3 * 3 / 4, 2 / 2, 3 / 2)


def test_kto_loss_has_its_largest_gradient_at_the_reference_point():
    """The slope of the sigmoid is 1/4 at 0, and 3/16 where it is 3/4."""
    log_ratio, desirable = f64(2 * math.log(3) + 1, 2 * math.log(3) + 1, 1, 1), mask_of("x.x.")[0]
    gradient = gradient_of(lambda x: kto_loss(x, desirable, f64(1, 1, 1, 1), beta=0.5, **WEIGHTS), log_ratio)
    assert_values(gradient, -2 * 0.5 * 3 / 16, 3 * 0.5 * 3 / 16, -2 * 0.5 / 4, 3 * 0.5 / 4)


def test_kto_loss_is_finite_for_extreme_log_ratios():
    loss = kto_loss(f64(1e4, 1e4), mask_of("x.")[0], f64(0, 0), beta=1.0, **WEIGHTS)
    assert torch.equal(loss, f64(0, 3))
