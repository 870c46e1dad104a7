"""Checks of the end of a completion: by a stop token, a stop string or `cancel`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from purerl.protocols import Completion, Request
from purerl.testing.generator.case import DELAYS, Case
from purerl.testing.generator.comparison import Answer, assert_aligned, assert_same_tokens, describe

__all__ = [
    "cancel_returns_generated_tokens",
    "canceled_completions_begin_whole_completions",
    "stop_strings_end_completion",
    "stop_tokens_end_completion",
]


def stop_tokens_end_completion(case: Case) -> None:
    """A completion ends with its first stop token, with finish "stop" even if it is the last token before the limit."""
    half = tuple(range(0, case.vocabulary, 2))
    requests = [case.request(number, max_tokens=1 + number % 12, stop_tokens=half) for number in range(24)]
    completions = case.run(requests)
    for request, completion in zip(requests, completions, strict=True):
        _assert_ended(request, completion, [token in half for token in completion.tokens])
    assert any(completion.finish == "stop" for completion in completions), (
        f"finish of {len(requests)} completions that end with half of all tokens: got no 'stop', expected some"
    )
    every = case.request(5, max_tokens=1, stop_tokens=tuple(range(case.vocabulary)))
    _assert_ended(every, case.run([every])[0], [True])


def stop_strings_end_completion(case: Case) -> None:
    """A completion ends with the token that completes a stop string. A stop string may span several tokens.

    The stop string is two tokens of a completion of the same prompt, so another completion often contains it.
    """
    if case.text is None:
        return
    stopped = 0
    for number, temperature in enumerate((0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)):
        request = case.request(number, max_tokens=12, temperature=temperature)
        tokens = case.run([request])[0].tokens
        strings = ("\N{SNOWMAN}" * 3, case.text(tokens[4:6]))
        request = case.request(number, max_tokens=12, temperature=temperature, stop_strings=strings)
        completion = case.run([request])[0]
        texts = [case.text(completion.tokens[: end + 1]) for end in range(len(completion.tokens))]
        _assert_ended(request, completion, [any(string in text for string in strings) for text in texts])
        stopped += completion.finish == "stop"
    assert stopped, "completions with a stop string from a completion of the same prompt: got no 'stop', expected some"


def _assert_ended(request: Request, completion: Completion, stops: Sequence[bool]) -> None:
    """`stops` says of each token whether the completion has to end with it, at the latest."""
    limit, count = request.sampling.max_tokens, len(completion.tokens)
    end = next((number for number, stop in enumerate(stops, 1) if stop), limit)
    finish = "stop" if any(stops) else "length"
    assert (count, completion.finish) == (end, finish), (
        f"tokens and finish of a completion that can stop: got {count} and {completion.finish!r}, expected {end} and "
        f"{finish!r}\n  {[*completion.tokens]}\n  {describe(request)}"
    )


def cancel_returns_generated_tokens(case: Case) -> None:
    """A canceled request returns the tokens that were generated so far. The other requests run to their end."""
    _cancel_some(case, [case.request(number, max_tokens=case.long) for number in range(12)])


def canceled_completions_begin_whole_completions(case: Case) -> None:
    """The tokens of a canceled request are the first ones of the same request that is not canceled."""
    requests = [case.request(number, max_tokens=case.long) for number in range(12)]
    whole = dict(zip([request.key for request in requests], case.run(requests), strict=True))
    for request, completion in _cancel_some(case, requests):
        start = evolve(whole[request.key], tokens=whole[request.key].tokens[: len(completion.tokens)])
        assert_same_tokens(Answer(request, completion, "canceled"), Answer(request, start, "not canceled"))


def _cancel_some(case: Case, requests: Sequence[Request]) -> list[tuple[Request, Completion]]:
    """Submit `requests`, cancel half of them, check all, and return those that were in flight."""
    by_key, counts = {request.key: request for request in requests}, set[int]()
    for delay in DELAYS:
        finished = case.start(requests, delay)
        remaining = [key for key in by_key if key not in finished]
        canceled = remaining[::2]
        case.generator.cancel([*canceled, "unknown key"])
        pairs = [(by_key[completion.key], completion) for completion in case.wait(remaining)]
        for request, completion in pairs:
            count, limit = len(completion.tokens), request.sampling.max_tokens
            assert_aligned(completion)
            finish = "cancelled" if count < limit else "length"
            assert completion.finish == finish, (
                f"finish with {count} of {limit} tokens: got {completion.finish!r}, expected {finish!r}"
            )
            assert finish == "length" or completion.key in canceled, (
                f"tokens of {completion.key!r}, which was not canceled: got {count}, expected {limit}"
            )
            case.check_logp(request, completion)
        counts |= {len(completion.tokens) for _, completion in pairs}
        if counts - {0, case.long}:
            return pairs
    raise AssertionError(
        f"tokens of canceled requests: got {sorted(counts)}, expected those generated so far, between 0 and {case.long}"
    )
