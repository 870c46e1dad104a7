"""The statistics of evaluations, by brute force and by simulation."""

from __future__ import annotations

import random
from itertools import combinations, permutations
from math import comb, isclose
from statistics import fmean

import pytest

from purerl.evaluation.statistics import interval, majority, pass_at

COUNTS = [(right, samples) for samples in range(1, 8) for right in range(samples + 1)]

# --- pass@k ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "samples"), COUNTS)
def test_pass_at_k_is_the_share_of_sets_that_hold_a_right_one(right: int, samples: int) -> None:
    completions = [True] * right + [False] * (samples - right)
    for k in range(1, samples + 1):
        expected = fmean(any(some) for some in combinations(completions, k))
        assert isclose(pass_at(right, samples, k=k), expected, abs_tol=1e-12)


def test_pass_at_k_is_without_bias() -> None:
    p, samples, k = 0.3, 6, 4
    chances = [comb(samples, right) * p**right * (1 - p) ** (samples - right) for right in range(samples + 1)]
    expected = sum(chance * pass_at(right, samples, k=k) for right, chance in enumerate(chances))
    assert isclose(expected, 1 - (1 - p) ** k)


@pytest.mark.parametrize(("right", "samples"), COUNTS)
def test_pass_at_k_grows_with_k_and_is_the_mean_at_1(right: int, samples: int) -> None:
    found = [pass_at(right, samples, k=k) for k in range(1, samples + 1)]
    assert found == sorted(found)
    assert isclose(found[0], right / samples, abs_tol=1e-12)


def test_pass_at_k_of_many_completions() -> None:
    assert isclose(pass_at(3, 10_000, k=100), 1 - comb(9_997, 100) / comb(10_000, 100), rel_tol=1e-9)


@pytest.mark.parametrize(("right", "samples", "k"), [(1, 4, 0), (1, 4, 5), (5, 4, 1), (-1, 4, 1)])
def test_counts_that_cannot_be_are_refused(right: int, samples: int, k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= samples"):
        pass_at(right, samples, k=k)


# --- maj@k -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("r", 1.0),
        ("rrx", 1.0),
        ("rxx", 0.0),
        ("rx", 1 / 2),
        ("rxy", 1 / 3),
        ("rrxxy", 1 / 2),
        ("r---", 1.0),
        ("---", 0.0),
    ],
)
def test_the_most_frequent_answer_decides_in_whatever_order(answers: str, expected: float) -> None:
    for order in permutations(answers):
        said = [None if one == "-" else one for one in order]
        assert majority(said, [one == "r" for one in order]) == pytest.approx(expected)


def test_completions_of_one_answer_may_be_judged_differently() -> None:
    assert majority(["r", "r", "x"], [True, False, False]) == 0.5


# --- the interval ------------------------------------------------------------------------------------------------


def _wilson(p: float, n: float) -> tuple[float, float]:
    """The roots of (p - x)^2 = z^2 x (1 - x) / n."""
    z = 1.959963984540054
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = (b * b - 4 * a * c) ** 0.5
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize("solved", range(0, 21, 4))
def test_of_one_completion_each_it_is_wilsons(solved: int) -> None:
    found = interval([1.0] * solved + [0.0] * (20 - solved), samples=1)
    assert found == pytest.approx(_wilson(solved / 20, 20), abs=1e-9)


def test_more_completions_tell_more_only_where_they_differ() -> None:
    agreed, split = [1.0, 0.0] * 10, [0.5] * 20
    assert interval(agreed, samples=8) == pytest.approx(_wilson(0.5, 20))
    assert interval(split, samples=8) == pytest.approx(_wilson(0.5, 160))
    assert interval([1.0] * 20, samples=8) == pytest.approx(_wilson(1.0, 20))


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_it_covers_the_truth_as_often_as_it_says(p: float, hard: float, samples: int) -> None:
    """A share `hard` of the problems is solved always or never, the others with probability p each time."""
    rng = random.Random(f"{p} {hard} {samples}")
    runs, covered = 500, 0
    for _ in range(runs):
        chances = [float(rng.random() < p) if rng.random() < hard else p for _ in range(60)]
        shares = [sum(rng.random() < chance for _ in range(samples)) / samples for chance in chances]
        low, high = interval(shares, samples=samples)
        covered += low <= p <= high
    assert 0.92 <= covered / runs <= 0.985


def test_of_no_problems_there_is_no_interval() -> None:
    with pytest.raises(ValueError, match="no shares"):
        interval([], samples=1)
