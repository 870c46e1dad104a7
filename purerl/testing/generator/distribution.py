"""Checks of the distribution that tokens are sampled from, and of their log-probabilities.

No seed is needed: sampled tokens are compared with a forward pass by a chi-square test. A generator that is right fails
it with a probability of about `MIN_P_VALUE`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

from attrs import evolve

from purerl.protocols import Completion
from purerl.testing.generator.case import Case
from purerl.testing.generator.chi_square import MIN_EXPECTED, chi_square

__all__ = [
    "MIN_P_VALUE",
    "greedy_decoding_returns_argmax",
    "logp_equals_forward_pass",
    "sampled_pairs_match_probabilities",
    "sampled_tokens_match_probabilities",
]

MIN_P_VALUE = 1e-6
"""Frequencies with a smaller p-value are wrong."""

Outcome = TypeVar("Outcome", bound=Hashable)


def logp_equals_forward_pass(case: Case) -> None:
    """The log-probability of each token is that of the model, at the sampling temperature."""
    temperatures = (1.0, 0.5, 1.7, 0.0)
    requests = [case.request(number, max_tokens=10, temperature=temperatures[number % 4]) for number in range(16)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        case.check_logp(request, completion)


def greedy_decoding_returns_argmax(case: Case) -> None:
    """At temperature 0 no token has a higher log-probability than the token that is returned."""
    requests = [case.request(number, temperature=0.0, max_tokens=1) for number in range(4)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        expected, [token] = case.next_logp(request.tokens, 0.0), completion.tokens
        largest = max(expected)
        assert expected[token] >= largest - 2 * case.tolerance, (
            f"token {token} at temperature 0: got the logp {expected[token]}, expected the largest, that of token "
            f"{expected.index(largest)}: {largest}"
        )


def sampled_tokens_match_probabilities(case: Case) -> None:
    """The frequencies of the next token of a prompt fit its probabilities, at several temperatures.

    All samples run together.
    """
    for temperature in (1.0, 0.5, 1.7):
        completions = _sampled(case, temperature, max_tokens=1)
        probabilities = _next(case, (), temperature)
        _assert_fit(Counter(completion.tokens for completion in completions), probabilities, temperature)


def sampled_pairs_match_probabilities(case: Case) -> None:
    """The frequencies of pairs of tokens fit their probabilities.

    They show whether the second token is drawn independently of the first token's random number. All pairs whose first
    token is expected less than five times count as one outcome.
    """
    for temperature in (1.0, 0.5):
        completions = _sampled(case, temperature, max_tokens=2)
        first = _next(case, (), temperature)
        pairs = {
            pair: p * q
            for start, p in first.items()
            if case.samples * p >= MIN_EXPECTED
            for pair, q in _next(case, start, temperature).items()
        }
        _assert_fit(Counter(completion.tokens for completion in completions), pairs, temperature)


def _sampled(case: Case, temperature: float, max_tokens: int) -> list[Completion]:
    request = case.request(3, max_tokens=max_tokens, temperature=temperature)
    return case.run([evolve(request, key=str(seed), seed=seed) for seed in range(case.samples)])


def _next(case: Case, start: tuple[int, ...], temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of each token after the prompt of `_sampled` and `start`; the keys are `start` and the token."""
    logp = case.next_logp([*case.request(3).tokens, *start], temperature)
    return {(*start, token): math.exp(value) for token, value in enumerate(logp)}


def _assert_fit(counts: Mapping[Outcome, int], probabilities: Mapping[Outcome, float], temperature: float) -> None:
    n, result = sum(counts.values()), chi_square(counts, probabilities)
    worst = max(probabilities, key=lambda key: abs(counts.get(key, 0) - n * probabilities[key]))
    assert result.p_value >= MIN_P_VALUE, (
        f"frequencies of tokens in {n} samples at temperature {temperature}: got a p-value of {result.p_value:.3g} "
        f"(chi-square {result.statistic:.4g}, {result.degrees} degrees of freedom), expected at least {MIN_P_VALUE}; "
        f"tokens {worst}: got {counts.get(worst, 0)}, expected about {n * probabilities[worst]:.4g}"
    )
