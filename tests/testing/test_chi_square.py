"""The chi-square test: closed forms of the p-value, merged bins, and how often it rejects what is right."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from purerl.testing.generator.chi_square import chi_square


def test_p_value_with_one_and_two_degrees_of_freedom() -> None:
    """Q(1/2, x/2) = erfc(sqrt(x/2)) and Q(1, x/2) = exp(-x/2)."""
    result = chi_square({"a": 70, "b": 30}, {"a": 0.6, "b": 0.4})
    x = 100 / 60 + 100 / 40
    assert result == pytest.approx((x, 1, math.erfc(math.sqrt(x / 2))), rel=1e-12)
    result = chi_square({"a": 40, "b": 40, "c": 20}, {"a": 0.5, "b": 0.25, "c": 0.25})
    x = 100 / 50 + 225 / 25 + 25 / 25
    assert result == pytest.approx((x, 2, math.exp(-x / 2)), rel=1e-12)


def test_outcomes_that_are_expected_less_than_five_times_share_a_bin() -> None:
    rare = dict.fromkeys(range(10), 0.02)
    assert chi_square({"a": 70, 3: 30}, {"a": 0.8, **rare}) == chi_square({"a": 70, "b": 30}, {"a": 0.8, "b": 0.2})
    unknown = chi_square({"a": 70, "somewhere else": 30}, {"a": 0.8})
    assert unknown == chi_square({"a": 70, "b": 30}, {"a": 0.8, "b": 0.2})


def test_a_small_rest_is_merged_with_the_least_likely_outcome() -> None:
    merged = chi_square({"a": 60, "b": 30, "c": 10}, {"a": 0.68, "b": 0.3, "c": 0.02})
    assert merged == chi_square({"a": 60, "b": 40}, {"a": 0.68, "b": 0.32})


def test_one_bin_fits() -> None:
    assert chi_square({"a": 99, "b": 1}, {"a": 0.999, "b": 0.001}) == (pytest.approx(0, abs=1e-9), 0, 1.0)


def test_right_samples_are_rejected_as_often_as_the_p_value_says() -> None:
    """3,000 tests of 400 samples with bins of few expected samples: the share below 1 % has a deviation of 0.2 %."""
    rng = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(32, generator=rng)).double().softmax(-1)
    table = dict(enumerate(probabilities.tolist()))
    draws = probabilities.expand(3000, -1).multinomial(400, replacement=True, generator=rng).tolist()
    values = [chi_square(Counter(row), table).p_value for row in draws]
    assert sum(value < 0.01 for value in values) / len(values) < 0.02
    assert min(values) > 1e-6
    assert 0.4 < sum(values) / len(values) < 0.6
