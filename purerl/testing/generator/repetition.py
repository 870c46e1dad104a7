"""Checks of what a completion depends on: its request and the weights, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from attrs import evolve

from purerl.testing.generator.case import Case
from purerl.testing.generator.comparison import Answer, assert_same_logp, assert_same_tokens, describe

__all__ = [
    "concurrent_requests_do_not_change_results",
    "continued_completion_equals_single_completion",
    "seed_determines_tokens",
]


def seed_determines_tokens(case: Case) -> None:
    """The same seed gives the same tokens, and different seeds give different tokens. All 64 bits of a seed count.

    Each request runs alone.
    """
    requests = [evolve(case.request(7, max_tokens=12), key=str(seed), seed=seed) for seed in (0, 1, 2**40, 2**62 + 1)]
    first, second = ([Answer(r, case.run([r])[0], how) for r in requests] for how in ("first", "repeated"))
    for expected, actual in zip(first, second, strict=True):
        assert_same_tokens(actual, expected)
        assert_same_logp(actual, expected, tolerance=case.tolerance)
    for answer, other in combinations(first, 2):
        assert answer.completion.tokens != other.completion.tokens, (
            f"the 12 tokens of two requests with different seeds: got {answer.completion.tokens} for both, expected "
            f"different tokens\n  {describe(answer.request)}\n  {describe(other.request)}"
        )


def concurrent_requests_do_not_change_results(case: Case) -> None:
    """A completion is the same in a large batch, in another order, and alone. Without seeds, decoding is greedy."""
    temperature = 1.0 if case.generator.capabilities.seeded else 0.0
    temperatures = [temperature * factor for factor in (1.0, 0.0, 0.6)]
    requests = [case.request(k, max_tokens=4 + k % 9, temperature=temperatures[k % 3]) for k in range(24)]
    together = case.run(requests)
    others = {
        "in a batch in reverse order": case.run(requests[::-1])[::-1],
        "alone": [case.run([request])[0] for request in requests],
    }
    for how, completions in others.items():
        for request, expected, actual in zip(requests, together, completions, strict=True):
            answers = Answer(request, actual, how), Answer(request, expected, f"in a batch of {len(requests)}")
            assert_same_tokens(*answers)
            assert_same_logp(*answers, tolerance=case.tolerance)


def continued_completion_equals_single_completion(case: Case) -> None:
    """With greedy decoding, a request that continues a partial completion gives the rest of the full completion.

    Where two tokens are nearly tied, rounding may choose either, and the comparison ends.
    """
    for number in range(6):
        request = case.request(number, temperature=0.0, max_tokens=10)
        full = Answer(request, case.run([request])[0], "in one completion")
        rest_of_request, tokens = evolve(request.sampling, max_tokens=6), [*request.tokens, *full.completion.tokens[:4]]
        continued = evolve(request, tokens=tokens, sampling=rest_of_request)
        rest = Answer(continued, case.run([continued])[0], "continued after 4 tokens")
        if not _is_tied(case, rest, full.completion.tokens[4:]):
            assert_same_tokens(rest, full, start=4)


def _is_tied(case: Case, answer: Answer, expected: Sequence[int]) -> bool:
    """Whether the first token that differs from `expected` is as likely as that one, up to rounding."""
    tokens = answer.completion.tokens
    first = next((k for k, pair in enumerate(zip(tokens, expected, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        return False
    logp = case.next_logp([*answer.request.tokens, *tokens[:first]], 0.0)
    return abs(logp[tokens[first]] - logp[expected[first]]) <= 2 * case.tolerance
