"""How often problems are solved, estimated from several completions of each, and how sure the estimate is.

Each function is about plain numbers: n completions of a problem, c of them right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod, sqrt
from statistics import NormalDist, fmean

__all__ = ["interval", "majority", "pass_at"]

_Z = NormalDist().inv_cdf(0.975)


def pass_at(right: int, samples: int, *, k: int) -> float:
    """The probability that one at least of k completions is right, without bias, from `samples` of which `right` are.

        pass@k = 1 - C(n - c, k) / C(n, k) = 1 - product over i = n - c + 1, ..., n of (1 - k / i)

    This is the share of all sets of k among the n that hold a right one; at k = 1 it is c / n. The product has no large
    numbers in it. Raises ValueError where k is not from 1 to n, or c not from 0 to n.
    Source: 2107.03374, eq. 1.

    >>> pass_at(1, 4, k=1), pass_at(1, 4, k=2), pass_at(3, 4, k=2)
    (0.25, 0.5, 1.0)
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"{right} right of {samples}, k = {k}: needed are 0 <= right <= samples and 1 <= k <= samples")
    return 1.0 - prod(1.0 - k / i for i in range(samples - right + 1, samples + 1))


def majority(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """Whether the answer that most completions of a problem come to is right.

        maj@n = mean over the most frequent answers a of (share of the completions with answer a that are right)

    So answers that are equally frequent count in equal parts, and the order of completions is no matter. None is no
    answer and has no vote; where nothing else is said, maj@n is 0. An answer's completions are commonly all right or
    all wrong. n is the number of completions: of fewer there would be no estimate without bias as simple as pass@k's.
    Source: self-consistency, 2203.11171.

    >>> majority(["7", "7", "8", None], [True, True, False, False])
    1.0
    >>> majority(["7", "8"], [True, False]), majority([None], [False])
    (0.5, 0.0)
    """
    votes = Counter(answer for answer in answers if answer is not None)
    first = {answer for answer, count in votes.items() if count == max(votes.values())}
    shares = (fmean(r for a, r in zip(answers, right, strict=True) if a == answer) for answer in first)
    return fmean(shares) if first else 0.0


def interval(shares: Sequence[float], *, samples: int) -> tuple[float, float]:
    """The 95 % interval for the mean of `shares`, each the share of one problem's `samples` completions that are right.

        p = mean of the shares;  n = p (1 - p) / (variance of the shares / P), from P to P * samples;  Wilson's interval

        (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),    z = 1.96

    It is about which problems were drawn as well as about which completions: the problems are what is independent, and
    n is the number of independent completions that would tell as much. With one completion of each of the P problems it
    is P. It is P too where all completions are right, or none is: then nothing says that more than one of a problem
    tells more. The interval lies within 0 and 1, and with 0 or P solved it is no point.
    Raises ValueError for no shares. Source: Wilson (1927); for clusters, 2411.00640.

    >>> low, high = interval([1.0] * 8 + [0.0] * 2, samples=1)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if not shares:
        raise ValueError("no shares: needed is one problem at least")
    problems, p = len(shares), fmean(shares)
    spread = fmean((share - p) ** 2 for share in shares) / problems
    n = problems
    if 0 < p < 1:
        n = min(max(p * (1 - p) / spread, problems), problems * samples) if spread else problems * samples
    center, half = p + _Z**2 / (2 * n), _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
    low, high = ((center + side * half) / (1 + _Z**2 / n) for side in (-1, 1))
    return max(low, 0.0), min(high, 1.0)
