"""Comparisons of completions, whose messages name both requests."""

from __future__ import annotations

from typing import NamedTuple

from purerl.protocols import Completion, Request

__all__ = ["Answer", "assert_aligned", "assert_same_logp", "assert_same_tokens", "describe"]


class Answer(NamedTuple):
    """A request, its completion, and how it ran: for example, alone."""

    request: Request
    completion: Completion
    how: str


def assert_aligned(completion: Completion) -> None:
    """Raise AssertionError unless each token has a log-probability and a version."""
    tokens, logp, version = (len(values) for values in (completion.tokens, completion.logp, completion.version))
    assert tokens == logp == version, (
        f"number of log-probabilities and versions: got {logp} and {version}, expected {tokens}, one for each token"
    )


def assert_same_tokens(actual: Answer, expected: Answer, *, start: int = 0) -> None:
    """Raise AssertionError unless `actual` has the tokens of `expected` from `start` on.

    The message has the first token that differs, and both requests.
    """
    got, wanted = tuple(actual.completion.tokens), tuple(expected.completion.tokens[start:])
    if got == wanted:
        return
    first = next((k for k, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), None)
    where = (
        f"the number of tokens: got {len(got)}, expected {len(wanted)}"
        if first is None
        else (f"the first difference at new token {first}: got {got[first]}, expected {wanted[first]}")
    )
    raise AssertionError(_message(where, actual, expected, got, wanted))


def assert_same_logp(actual: Answer, expected: Answer, *, tolerance: float) -> None:
    """Raise AssertionError unless the log-probabilities differ by at most `tolerance`."""
    for index, (got, wanted) in enumerate(zip(actual.completion.logp, expected.completion.logp, strict=True)):
        if not abs(got - wanted) <= tolerance:
            where = f"logp of new token {index}: got {got}, expected {wanted} with a tolerance of {tolerance}"
            raise AssertionError(_message(where, actual, expected, actual.completion.logp, expected.completion.logp))


def _message(where: str, actual: Answer, expected: Answer, got: object, wanted: object) -> str:
    return (
        f"{where}\n"
        f"  got:      {got}\n            {actual.how}: {describe(actual.request)}\n"
        f"  expected: {wanted}\n            {expected.how}: {describe(expected.request)}"
    )


def describe(request: Request) -> str:
    """`request` in words: key, seed, sampling and prompt.

    >>> from purerl.protocols import Sampling
    >>> describe(Request("a", (5, 6), Sampling(max_tokens=4), seed=3))
    "request 'a', seed 3, temperature 1, max_tokens 4, prompt [5, 6]"
    """
    sampling = request.sampling
    stops = [f"stop {stop!r}" for stop in (*sampling.stop_tokens, *sampling.stop_strings)]
    parts = [f"request {request.key!r}", f"seed {request.seed}", f"temperature {sampling.temperature:g}"]
    parts += [f"max_tokens {sampling.max_tokens}", *stops]
    parts += [f"{name} {getattr(sampling, name)!r}" for name in sorted(sampling.parameters) if " " not in name]
    return ", ".join([*parts, f"prompt {[*request.tokens]}"])
