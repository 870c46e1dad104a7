"""Statistics of an evaluation with one or several completions per problem.

All functions take plain numbers. n is the number of completions of a problem, c is the number of correct ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod, sqrt
from statistics import NormalDist, fmean

__all__ = ["accuracy_interval", "majority_vote", "pass_at_k"]

_Z = NormalDist().inv_cdf(0.975)


def pass_at_k(num_correct: int, num_samples: int, *, k: int) -> float:
    """Estimate pass@k, the probability that at least one of k completions of a problem is correct.

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - product over i = n - c + 1, ..., n of (1 - k / i)

    n is `num_samples` and c is `num_correct`. The estimate is unbiased: it is the fraction of all subsets of k out of n
    completions that contain a correct one. At k = 1 it is c / n. The product form has no large intermediate numbers.

    Raises: ValueError if k is not in [1, n], or c is not in [0, n]. Source: 2107.03374, eq. 1.

    >>> pass_at_k(1, 4, k=1), pass_at_k(1, 4, k=2), pass_at_k(3, 4, k=2)
    (0.25, 0.5, 1.0)
    """
    if not 1 <= k <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(
            f"got num_correct={num_correct}, num_samples={num_samples}, k={k}; "
            "need 0 <= num_correct <= num_samples and 1 <= k <= num_samples"
        )
    return 1.0 - prod(1.0 - k / i for i in range(num_samples - num_correct + 1, num_samples + 1))


def majority_vote(answers: Sequence[str | None], is_correct: Sequence[bool]) -> float:
    """Compute maj@n, the accuracy of the most frequent answer among the n completions of a problem.

        maj@n = mean over the most frequent answers a of (fraction of the completions with answer a that are correct)

    Tied answers have equal weight, so the order of the completions does not matter. Completions with the same answer
    are usually all correct or all incorrect. None means that a completion has no answer. It does not vote, and maj@n is
    0 if no completion has an answer. n is always the number of completions: for a smaller n, no unbiased estimate is as
    simple as the one for pass@k.

    Source: self-consistency, 2203.11171.

    >>> majority_vote(["7", "7", "8", None], [True, True, False, False])
    1.0
    >>> majority_vote(["7", "8"], [True, False]), majority_vote([None], [False])
    (0.5, 0.0)
    """
    votes = Counter(answer for answer in answers if answer is not None)
    winners = {answer for answer, count in votes.items() if count == max(votes.values())}
    accuracies = [fmean(c for a, c in zip(answers, is_correct, strict=True) if a == winner) for winner in winners]
    return fmean(accuracies) if accuracies else 0.0


def accuracy_interval(accuracies: Sequence[float], *, num_samples: int) -> tuple[float, float]:
    """Compute the 95% confidence interval of the mean accuracy over P problems.

    `accuracies` contains, for each problem, the fraction of its `num_samples` completions that are correct. Wilson's
    interval is used with an effective number n of independent completions:

        p = mean of the accuracies
        n = p (1 - p) / (variance of the accuracies / P), at least P, at most P * samples
        interval = (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),    z = 1.96

    Problems are independent, but completions of one problem are not. The interval includes the uncertainty from the
    choice of the problems and from the sampling of the completions. With one completion per problem, n = P. If all
    completions are correct, or none is, n = P too, because the data does not show whether several completions of one
    problem contain more information than one. The interval lies within [0, 1], and its width is never 0.

    Raises: ValueError if `accuracies` is empty. Source: Wilson (1927); for clusters, 2411.00640.

    >>> low, high = accuracy_interval([1.0] * 8 + [0.0] * 2, num_samples=1)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if not accuracies:
        raise ValueError("accuracies is empty; need the accuracy of at least one problem")
    num_problems, p = len(accuracies), fmean(accuracies)
    variance_of_mean = fmean((accuracy - p) ** 2 for accuracy in accuracies) / num_problems
    n = num_problems
    if 0 < p < 1:
        max_n = num_problems * num_samples
        n = min(max(p * (1 - p) / variance_of_mean, num_problems), max_n) if variance_of_mean else max_n
    center, half_width = p + _Z**2 / (2 * n), _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
    low, high = ((center + sign * half_width) / (1 + _Z**2 / n) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)
