"""Checks of `submit` and `collect`: each request is refused, or answered once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from attrs import evolve

from purerl.errors import InputError
from purerl.protocols import SAMPLING_PARAMETERS, Completion, Request
from purerl.testing.generator.case import Case
from purerl.testing.generator.comparison import assert_aligned, describe
from purerl.testing.suite import assert_raises, shown

__all__ = [
    "collect_without_requests_returns_empty_list",
    "every_request_is_returned_once",
    "invalid_requests_are_refused",
    "log_probabilities_are_finite",
    "polling_makes_progress",
]


def collect_without_requests_returns_empty_list(case: Case) -> None:
    """`collect` returns an empty list, without waiting, if no request is in flight."""
    for timeout in (None, 0.0, 0.01):
        _assert_no_completions(case, timeout)
    case.generator.cancel(["unknown key"])
    case.generator.submit([])
    _assert_no_completions(case, None)


def _assert_no_completions(case: Case, timeout: float | None) -> None:
    completions = case.collect(timeout)
    assert not completions, f"collect(timeout={timeout}) without a request: got {completions}, expected an empty list"


def every_request_is_returned_once(case: Case) -> None:
    """Each request gives one completion with its key, `max_tokens` tokens, and a logp and a version for each token."""
    requests = [case.request(number, max_tokens=1 + number % 9) for number in range(40)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        count, limit = len(completion.tokens), request.sampling.max_tokens
        assert completion.finish == "length", f"finish without a stop: got {completion.finish!r}, expected 'length'"
        assert count == limit, f"number of tokens with finish 'length': got {count}, expected max_tokens, {limit}"
        assert_aligned(completion)
        assert all(0 <= token < case.vocabulary for token in completion.tokens), (
            f"token ids: got {completion.tokens}, expected ids from 0 to {case.vocabulary - 1}"
        )


def log_probabilities_are_finite(case: Case) -> None:
    """Each log-probability is a finite number, and at most 0."""
    requests = [case.request(number, temperature=(0.0, 1.0, 1.7)[number % 3]) for number in range(24)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        for index, logp in enumerate(completion.logp):
            assert -math.inf < logp <= case.tolerance, (
                f"logp of new token {index}: got {shown(logp)}, expected a finite number, at most 0\n"
                f"  {describe(request)}"
            )


def polling_makes_progress(case: Case) -> None:
    """Repeated calls of `collect(timeout=0)` return the completion in the end."""
    request, start = case.request(1, max_tokens=16), time.monotonic()
    case.generator.submit([request])
    completions: list[Completion] = []
    while not completions:
        assert time.monotonic() - start < case.timeout, (
            f"collect(timeout=0) for {case.timeout} s: got no completion, expected one"
        )
        completions = case.collect(timeout=0.0)
    keys = [completion.key for completion in completions]
    assert keys == [request.key], f"keys of the completions: got {keys}, expected {[request.key]}"


def invalid_requests_are_refused(case: Case) -> None:
    """`submit` raises InputError for a request that can never be served, and then enqueues none of the requests."""
    valid, names = case.request(2), SAMPLING_PARAMETERS - case.generator.capabilities.sampling
    not_supported = {name: {part: _VALID[part] for part in name.split(" with ")} for name in sorted(names)}
    invalid = {
        "no tokens": evolve(valid, tokens=()),
        "a negative temperature": case.request(2, temperature=-0.5),
        "max_tokens=0": case.request(2, max_tokens=0),
        "the key of another request": case.request(3),
        **{f"{name}={value}": case.request(2, **{name: value}) for name, value in _INVALID.items()},
        **{name: case.request(2, stop_tokens=(0,), **each) for name, each in not_supported.items()},
    }
    for problem, request in invalid.items():
        _assert_refused(case, [case.request(3), request], problem)
        completions = case.collect(None)
        assert not completions, f"completions after a refused request with {problem}: got {completions}, expected none"
    case.generator.submit([valid])
    _assert_refused(case, [case.request(3), valid], "the key of a request in flight")
    case.wait([valid.key])
    case.run([valid])


_INVALID = {"top_p": 0.0, "top_k": -1, "min_p": 1.5, "repetition_penalty": 0.0, "min_tokens": -1}
_VALID = {"top_p": 0.9, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2}
_VALID |= {"stop_strings": ("a",), "regex": "a", "json_schema": "{}"}


def _assert_refused(case: Case, requests: Sequence[Request], problem: str) -> None:
    assert_raises(InputError, lambda: case.generator.submit(requests), f"submit of a request with {problem}")
