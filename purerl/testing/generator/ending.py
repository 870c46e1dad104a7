"""Checks of the end of a completion: by a stop token, a stop string or `cancel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from purerl.protocols import Completion
from purerl.testing.generator.case import DELAYS, Case
from purerl.testing.generator.comparison import Answer, assert_aligned, assert_same_tokens, describe

__all__ = [
    "cancel_returns_generated_tokens",
    "stop_strings_end_completion",
    "stop_tokens_end_completion",
]


def stop_tokens_end_completion(case: Case) -> None:
    """A completion ends with its first stop token, with finish "stop" even if it is the last token before the limit."""
    sampling = {"max_tokens": 12, "temperature": case.temperature}
    for number in range(8):
        plain = case.request(number, **sampling)
        completion = case.run([plain])[0]
        full = completion.tokens
        stop, end = full[5], full.index(full[5]) + 1
        expected = Answer(plain, evolve(completion, tokens=full[:end]), "the start of a completion without it")
        unused = next(token for token in range(len(full) + 1) if token not in full)
        for max_tokens in (12, end):
            changed = sampling | {"max_tokens": max_tokens, "stop_tokens": (unused, stop)}
            request = case.request(number, **changed)
            _assert_stopped(Answer(request, case.run([request])[0], f"with stop token {stop}"), expected)
        completion = case.run([case.request(number, **sampling, stop_tokens=(unused,))])[0]
        assert completion.finish == "length", (
            f"finish with stop token {unused}, which does not occur: got {completion.finish!r}, expected 'length'"
        )


def stop_strings_end_completion(case: Case) -> None:
    """A completion ends with the token that completes a stop string. A stop string may span several tokens."""
    if case.text is None:
        return
    sampling = {"max_tokens": 12, "temperature": case.temperature}
    for number in range(8):
        plain = case.request(number, **sampling)
        completion = case.run([plain])[0]
        full = completion.tokens
        stop = case.text(full[4:6])
        end = next(end for end in range(1, 13) if stop in case.text(full[:end]))
        unused = "\N{SNOWMAN}" * 3
        request = case.request(number, **sampling, stop_strings=(unused, stop))
        expected = Answer(plain, evolve(completion, tokens=full[:end]), "the start of a completion without it")
        _assert_stopped(Answer(request, case.run([request])[0], f"with stop string {stop!r}"), expected)


def _assert_stopped(actual: Answer, expected: Answer) -> None:
    finish = actual.completion.finish
    assert finish == "stop", f"finish {actual.how}: got {finish!r}, expected 'stop'\n  {describe(actual.request)}"
    assert_same_tokens(actual, expected)


def cancel_returns_generated_tokens(case: Case) -> None:
    """A canceled request returns the tokens that were generated so far. The other requests run to their end.

    Tokens are compared with those of another run if the generator is both `seeded` and `batch_invariant`.
    """
    requests = [case.request(number, max_tokens=case.long) for number in range(12)]
    whole = {completion.key: completion for completion in case.run(requests)}
    full, by_key = {key: completion.tokens for key, completion in whole.items()}, {r.key: r for r in requests}
    for delay in DELAYS:
        case.generator.submit(requests)
        finished = {completion.key for _ in range(3) for completion in case.collect(timeout=delay)}
        remaining = [key for key in full if key not in finished]
        canceled = remaining[::2]
        case.generator.cancel([*canceled, "unknown key"])
        completions = case.wait(remaining)
        if case.is_repeatable:
            for completion in completions:
                start = evolve(whole[completion.key], tokens=full[completion.key][: len(completion.tokens)])
                request = by_key[completion.key]
                assert_same_tokens(Answer(request, completion, "canceled"), Answer(request, start, "not canceled"))
        counts = [_count_after_cancel(completion, full, canceled) for completion in completions]
        if any(0 < count < len(full[key]) for key, count in zip(remaining, counts, strict=True)):
            return
    raise AssertionError("completions of canceled requests: got no tokens in any, expected the tokens generated so far")


def _count_after_cancel(completion: Completion, full: Mapping[str, Sequence[int]], canceled: Sequence[str]) -> int:
    """Check the completion of a request that may be canceled, and return its number of tokens."""
    expected, count = full[completion.key], len(completion.tokens)
    assert_aligned(completion)
    finish = "cancelled" if count < len(expected) else "length"
    assert completion.finish == finish, (
        f"finish with {count} of {len(expected)} tokens: got {completion.finish!r}, expected {finish!r}"
    )
    assert finish == "length" or completion.key in canceled, (
        f"tokens of {completion.key!r}, which was not canceled: got {count}, expected {len(expected)}"
    )
    return count
