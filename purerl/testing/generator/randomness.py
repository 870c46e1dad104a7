"""Checks of random numbers: each token of each request has one of its own. No seed is needed."""

from __future__ import annotations

from collections import Counter

from attrs import evolve

from purerl.testing.generator.case import Case
from purerl.testing.generator.chi_square import MIN_EXPECTED
from purerl.testing.generator.comparison import describe
from purerl.testing.generator.distribution import assert_fit, flat_temperature, next_tokens, sample

__all__ = ["each_request_has_random_numbers_of_its_own", "each_token_has_a_random_number_of_its_own"]

_REQUESTS = 32


def each_request_has_random_numbers_of_its_own(case: Case) -> None:
    """Requests with one prompt and different seeds, which run together, have different random numbers.

    32 requests for one token run together, 32 times with other seeds, at a temperature at which no token has a
    probability above 0.5. Two of them that have the same token each time have the same random number.
    """
    prompt = case.request(3, max_tokens=1, temperature=flat_temperature(case))
    rounds = [
        [evolve(prompt, key=str(seed), seed=seed) for seed in range(start, start + _REQUESTS)]
        for start in range(0, _REQUESTS**2, _REQUESTS)
    ]
    tokens = zip(*([completion.tokens[0] for completion in case.run(requests)] for requests in rounds), strict=True)
    first: dict[tuple[int, ...], int] = {}
    for number, row in enumerate(tokens):
        other = first.setdefault(row, number)
        assert other == number, (
            f"requests number {other} and {number} of {_REQUESTS} that ran together, {len(rounds)} times: got the "
            f"tokens {row} for both, expected different ones: they have the same random numbers, or decoding is "
            f"greedy\n  {describe(rounds[0][other])}\n  {describe(rounds[0][number])}"
        )


def each_token_has_a_random_number_of_its_own(case: Case) -> None:
    """The frequencies of pairs of tokens fit their probabilities.

    So the second token does not depend on the random number of the first one. All pairs whose first token is expected
    less than five times count as one outcome.
    """
    for temperature in (1.0, 0.5):
        completions = sample(case, temperature, max_tokens=2)
        first = next_tokens(case, (), temperature)
        pairs = {
            pair: p * q
            for start, p in first.items()
            if case.samples * p >= MIN_EXPECTED
            for pair, q in next_tokens(case, start, temperature).items()
        }
        counts = Counter(completion.tokens for completion in completions)
        assert_fit(counts, pairs, f"pairs of tokens in {len(completions)} samples at temperature {temperature}")
