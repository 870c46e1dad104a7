"""The statistics of evaluations, compared with brute force and with simulation."""

from __future__ import annotations

import random
from itertools import combinations, permutations
from math import comb, isclose
from statistics import fmean

import pytest

from purerl.evaluation.statistics import accuracy_interval, majority_vote, pass_at_k

COUNTS = [(num_correct, num_samples) for num_samples in range(1, 8) for num_correct in range(num_samples + 1)]

# --- pass@k -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_correct", "num_samples"), COUNTS)
def test_pass_at_k_is_the_fraction_of_subsets_with_a_correct_completion(num_correct: int, num_samples: int) -> None:
    completions = [True] * num_correct + [False] * (num_samples - num_correct)
    for k in range(1, num_samples + 1):
        expected = fmean(any(subset) for subset in combinations(completions, k))
        assert isclose(pass_at_k(num_correct, num_samples, k=k), expected, abs_tol=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    p, n, k = 0.3, 6, 4
    probabilities = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    expectation = sum(probability * pass_at_k(c, n, k=k) for c, probability in enumerate(probabilities))
    assert isclose(expectation, 1 - (1 - p) ** k)


@pytest.mark.parametrize(("num_correct", "num_samples"), COUNTS)
def test_pass_at_k_increases_with_k_and_pass_at_1_is_the_mean(num_correct: int, num_samples: int) -> None:
    estimates = [pass_at_k(num_correct, num_samples, k=k) for k in range(1, num_samples + 1)]
    assert estimates == sorted(estimates)
    assert isclose(estimates[0], num_correct / num_samples, abs_tol=1e-12)


def test_pass_at_k_of_ten_thousand_completions() -> None:
    assert isclose(pass_at_k(3, 10_000, k=100), 1 - comb(9_997, 100) / comb(10_000, 100), rel_tol=1e-9)


@pytest.mark.parametrize(("num_correct", "num_samples", "k"), [(1, 4, 0), (1, 4, 5), (5, 4, 1), (-1, 4, 1)])
def test_pass_at_k_refuses_impossible_counts(num_correct: int, num_samples: int, k: int) -> None:
    with pytest.raises(ValueError, match="1 <= k <= num_samples"):
        pass_at_k(num_correct, num_samples, k=k)


# --- maj@n ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("c", 1.0),
        ("ccx", 1.0),
        ("cxx", 0.0),
        ("cx", 1 / 2),
        ("cxy", 1 / 3),
        ("ccxxy", 1 / 2),
        ("c---", 1.0),
        ("---", 0.0),
    ],
)
def test_majority_vote_in_any_order(answers: str, expected: float) -> None:
    """Every letter is an answer, c is the correct one, and - means no answer."""
    for order in permutations(answers):
        votes = [None if letter == "-" else letter for letter in order]
        assert majority_vote(votes, [letter == "c" for letter in order]) == pytest.approx(expected)


def test_majority_vote_averages_completions_with_the_same_answer() -> None:
    assert majority_vote(["c", "c", "x"], [True, False, False]) == 0.5


# --- the confidence interval ------------------------------------------------------------------------------------


def _wilson(p: float, n: float) -> tuple[float, float]:
    """The roots x of (p - x)^2 = z^2 x (1 - x) / n."""
    z = 1.959963984540054
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = (b * b - 4 * a * c) ** 0.5
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize("solved", range(0, 21, 4))
def test_interval_with_one_completion_per_problem_is_wilsons(solved: int) -> None:
    interval = accuracy_interval([1.0] * solved + [0.0] * (20 - solved), num_samples=1)
    assert interval == pytest.approx(_wilson(solved / 20, 20), abs=1e-9)


def test_interval_is_narrower_only_if_completions_of_a_problem_differ() -> None:
    same_within_problems, different_within_problems = [1.0, 0.0] * 10, [0.5] * 20
    assert accuracy_interval(same_within_problems, num_samples=8) == pytest.approx(_wilson(0.5, 20))
    assert accuracy_interval(different_within_problems, num_samples=8) == pytest.approx(_wilson(0.5, 160))
    assert accuracy_interval([1.0] * 20, num_samples=8) == pytest.approx(_wilson(1.0, 20))


@pytest.mark.parametrize("num_samples", [1, 4])
@pytest.mark.parametrize("fixed_fraction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_interval_covers_the_accuracy_in_95_percent_of_evaluations(
    p: float, fixed_fraction: float, num_samples: int
) -> None:
    """`fixed_fraction` of the problems are solved always or never, the others with probability p in each completion."""
    rng = random.Random(f"{p} {fixed_fraction} {num_samples}")
    trials, covered = 500, 0
    for _ in range(trials):
        probabilities = [float(rng.random() < p) if rng.random() < fixed_fraction else p for _ in range(60)]
        accuracies = [fmean(rng.random() < q for _ in range(num_samples)) for q in probabilities]
        low, high = accuracy_interval(accuracies, num_samples=num_samples)
        covered += low <= p <= high
    assert 0.92 <= covered / trials <= 0.985


def test_interval_without_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="accuracies is empty"):
        accuracy_interval([], num_samples=1)
