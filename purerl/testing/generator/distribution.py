"""Checks of the distribution that tokens are sampled from, and of their log-probabilities."""

from __future__ import annotations

import math
from collections import Counter

from attrs import evolve

from purerl.testing.generator.case import Case

__all__ = [
    "greedy_decoding_returns_argmax",
    "logp_equals_forward_pass",
    "sampled_pairs_match_probabilities",
]


def logp_equals_forward_pass(case: Case) -> None:
    """The log-probability of each token is that of the model, at the sampling temperature."""
    temperatures = (1.0, 0.5, 1.7, 0.0)
    requests = [case.request(number, max_tokens=10, temperature=temperatures[number % 4]) for number in range(16)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        case.check_logp(request, completion)


def greedy_decoding_returns_argmax(case: Case) -> None:
    """At temperature 0 no token has a higher log-probability than the token that is returned."""
    for number in range(4):
        request = case.request(number, temperature=0.0, max_tokens=1)
        greedy = case.run([request])[0].logp[0]
        for token in range(min(case.vocabulary, 64)):
            logp = case.score(case.weights[0], [*request.tokens, token], 0.0)[-1]
            assert logp <= greedy + case.tolerance, (
                f"logp of the token at temperature 0: got {greedy}, expected at least {logp}, the logp of token {token}"
            )


def sampled_pairs_match_probabilities(case: Case) -> None:
    """The frequency of each pair of tokens is close to its probability.

    Pairs show whether the second token is drawn independently of the first token's random number. The probability of a
    pair is exp(logp_1 + logp_2); `logp_equals_forward_pass` tests these values. By Bernstein's inequality, the
    frequency of a pair in n samples differs from its probability p by more than

        sqrt(2 p (1 - p) t / n) + t / (3 n)

    with a probability of at most 2 exp(-t). For t = 25 this is 3e-11, and less than 1e-6 for all 10,000 pairs of a
    vocabulary of 100.
    """
    for temperature in (1.0, 0.5):
        request, n, t = case.request(3, max_tokens=2, temperature=temperature), case.samples, 25.0
        completions = case.run([evolve(request, key=str(seed), seed=seed) for seed in range(n)])
        probabilities = {completion.tokens: math.exp(sum(completion.logp)) for completion in completions}
        for pair, count in Counter(completion.tokens for completion in completions).items():
            p, frequency = probabilities[pair], count / n
            bound = math.sqrt(2 * max(p * (1 - p), 0) * t / n) + t / (3 * n)
            assert abs(frequency - p) <= bound, (
                f"frequency of tokens {pair} in {n} samples at temperature {temperature}: got {frequency}, "
                f"expected {p} with a tolerance of {bound:.3g}"
            )
