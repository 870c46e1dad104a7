"""Checks of the parameters in `Capabilities.sampling`, with an implementation of their definition for one token.

`expected_logp` is written for reading, in Python's floats. It needs the logits of the model, because a repetition
penalty depends on more than their differences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import evolve

from purerl.protocols import Completion, Request, Sampling
from purerl.testing.generator.case import Case
from purerl.testing.generator.comparison import Answer, assert_same_tokens, describe

__all__ = [
    "completion_matches_regex",
    "expected_logp",
    "min_tokens_delays_the_end",
    "sampling_parameters_change_probabilities",
    "top_k_of_one_is_greedy_decoding",
]

_CASES = (
    {"top_p": 0.7},
    {"top_k": 4},
    {"min_p": 0.15},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.8},
    {"min_tokens": 6},
    {"top_p": 0.8, "top_k": 6},
    {"top_p": 0.8, "min_p": 0.1},
    {"top_p": 0.9, "top_k": 8, "min_p": 0.05, "repetition_penalty": 1.2, "min_tokens": 4},
)
_MARGIN = 1e-4
"""Relative uncertainty of `top_p` and `min_p`: rounding decides whether a token that is so close to them is kept."""


def sampling_parameters_change_probabilities(case: Case) -> None:
    """Tokens are sampled from those that the parameters keep, with their probabilities under these parameters."""
    stops = tuple(range(case.vocabulary // 3))
    for parameters in _CASES:
        for temperature in (0.0, 0.7, 1.6):
            filters = {"top_p", "top_k", "min_p"} & parameters.keys() if temperature == 0 else set[str]()
            own = {name: value for name, value in parameters.items() if name not in filters}
            sampling = {"max_tokens": 9, "temperature": temperature, "stop_tokens": stops, **own}
            requests = [case.request(number, **sampling) for number in range(6)]
            if own and requests[0].sampling.parameters <= case.generator.capabilities.sampling:
                for request, completion in zip(requests, case.run(requests), strict=True):
                    _check(case, request, completion)


def top_k_of_one_is_greedy_decoding(case: Case) -> None:
    """With top_k=1 the tokens are those of greedy decoding, with a log-probability of 0."""
    for number in range(6):
        greedy, sampled = case.request(number, temperature=0.0), case.request(number, top_k=1)
        expected, actual = (Answer(each, case.run([each])[0], "") for each in (greedy, sampled))
        assert_same_tokens(actual._replace(how="with top_k=1"), expected._replace(how="with greedy decoding"))
        logp = actual.completion.logp
        assert all(abs(each) <= case.tolerance for each in logp), (
            f"log-probabilities with top_k=1: got {logp}, expected 0\n  {describe(sampled)}"
        )


def min_tokens_delays_the_end(case: Case) -> None:
    """The first `min_tokens` tokens contain no stop token, and no stop string ends the completion before."""
    supported, minimum = case.generator.capabilities.sampling, 5
    some = tuple(range(0, case.vocabulary, 2))
    for number in range(8):
        request = case.request(number, max_tokens=20, stop_tokens=some, min_tokens=minimum)
        first = case.run([request])[0].tokens[:minimum]
        assert len(first) == minimum, f"tokens: got {len(first)}, expected {minimum} or more\n  {describe(request)}"
        assert not {*first} & {*some}, f"first tokens: got {first}, expected no stop tokens\n  {describe(request)}"
        if case.text is not None and "min_tokens with stop_strings" in supported:
            strings = tuple(case.text([token]) for token in some)
            request = case.request(number, max_tokens=20, stop_strings=strings, min_tokens=minimum)
            count = len(case.run([request])[0].tokens)
            assert count > minimum, f"tokens: got {count}, expected more than {minimum}\n  {describe(request)}"


def completion_matches_regex(case: Case) -> None:
    """The text of a completion matches `regex`; log-probabilities are those among the tokens that it permits."""
    if case.text is None:
        return
    stops = tuple(range(case.vocabulary // 3))
    for number in range(6):
        allowed = [len(stops) + (number + k) % (case.vocabulary - len(stops)) for k in (0, 3, 7)]
        letters = "|".join(re.escape(case.text([token])) for token in allowed)
        request = case.request(number, max_tokens=8, stop_tokens=stops, regex=f"({letters}){{3}}")
        completion = case.run([request])[0]
        finish, text = completion.finish, case.text(completion.tokens[:-1])
        assert finish == "stop", f"finish: got {finish!r}, expected 'stop' after a match\n  {describe(request)}"
        assert re.fullmatch(request.sampling.regex or "", text), (
            f"completion: got {text!r}, expected a match of {request.sampling.regex!r}\n  {describe(request)}"
        )
        if case.logits:
            _check(case, request, completion, structure=[allowed] * 3)


def _check(
    case: Case, request: Request, completion: Completion, structure: Sequence[Collection[int]] | None = None
) -> None:
    """Compare the tokens of `completion` with the definition; only the first ones if `structure` permits some."""
    assert case.logits is not None
    count = len(completion.tokens) if structure is None else len(structure)
    for index, (token, logp) in enumerate(zip(completion.tokens[:count], completion.logp, strict=False)):
        before = [*request.tokens, *completion.tokens[:index]]
        logits = case.logits(case.weights[completion.version[index] % 2], before)
        permitted = range(len(logits)) if structure is None else structure[index]
        values = {k: float(logits[k]) for k in permitted}
        expected = [expected_logp(values, each, seen={*before}, count=index) for each in _nearby(request.sampling)]
        assert any(token in each and abs(each[token] - logp) <= case.tolerance for each in expected), (
            f"logp of new token {index}, {token}: got {logp}, expected {expected[0].get(token, -math.inf)}; "
            f"the tokens that are kept: {sorted(expected[0])}\n  {describe(request)}"
        )


def _nearby(sampling: Sampling) -> Iterator[Sampling]:
    yield sampling
    for sign in (-1, 1):
        factor = 1 + sign * _MARGIN
        top_p = min(1.0, sampling.top_p * factor) if sampling.top_p < 1 else 1.0
        yield evolve(sampling, top_p=top_p)
        yield evolve(sampling, min_p=min(1.0, sampling.min_p * factor))


def expected_logp(
    logits: Mapping[int, float], sampling: Sampling, *, seen: Collection[int], count: int
) -> dict[int, float]:
    """The log-probability of each token that can be sampled, by the definition in `Sampling`.

    logits  of the tokens that a grammar permits, or of all tokens
    seen    tokens of the prompt and the completion so far, which has `count` tokens

    >>> expected_logp({0: 1.0, 1: 0.5, 2: -9.0}, Sampling(top_k=1), seen=(), count=0)
    {0: 0.0}
    """
    z = {k: value for k, value in logits.items() if count >= sampling.min_tokens or k not in sampling.stop_tokens}
    penalty = sampling.repetition_penalty
    for k in z.keys() & seen:
        z[k] = z[k] / penalty if z[k] > 0 else z[k] * penalty
    if sampling.temperature == 0:
        return _log_softmax(z)
    z = {k: value / sampling.temperature for k, value in z.items()}
    least = max(z.values()) + (math.log(sampling.min_p) if sampling.min_p else -math.inf)
    z = {k: value for k, value in z.items() if value >= least}
    smallest = sorted(z.values(), reverse=True)[: sampling.top_k or None][-1]
    z = {k: value for k, value in z.items() if value >= smallest}
    logp = _log_softmax(z)
    more_likely = {k: sum(math.exp(other) for other in logp.values() if other > value) for k, value in logp.items()}
    return _log_softmax({k: z[k] for k in z if sampling.top_p == 1 or more_likely[k] < sampling.top_p})


def _log_softmax(z: Mapping[int, float]) -> dict[int, float]:
    largest = max(z.values())
    total = largest + math.log(sum(math.exp(value - largest) for value in z.values()))
    return {k: value - total for k, value in z.items()}
