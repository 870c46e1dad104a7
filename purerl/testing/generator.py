"""Conformance suite for generators: `check_generator`.

    def test_generator_conforms() -> None:
        check_generator(build, weights=[first, second], score=score, vocabulary=32)

`score` is an independent implementation of the model: a plain forward pass that does not use the generator. The checks
are fastest and most sensitive with a small vocabulary, peaked distributions and float32.

Each check is a function of `Case` that raises AssertionError with a message. `CHECKS` lists them in order.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from attrs import evolve
from torch import Tensor

from purerl.errors import InputError
from purerl.protocols import Completion, Generator, Request
from purerl.testing.generator_case import Case

__all__ = ["CHECKS", "Case", "check_generator"]

_TIMEOUT = 120.0
"""Seconds until a check gives up waiting for completions."""

_DELAYS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Timeouts, in seconds, of `collect` between submitting requests and interrupting them.

Several values are tried: a generator that decodes in the background may not have started, or may have finished.
"""


def check_generator(
    build: Callable[[], Generator],
    *,
    weights: Sequence[Mapping[str, Tensor]],
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]],
    vocabulary: int,
    text: Callable[[Sequence[int]], str] | None = None,
    tolerance: float = 1e-4,
    samples: int = 2000,
) -> None:
    """Test that a generator satisfies `purerl.protocols.Generator`, and has the `capabilities` that it states.

    build        makes the generator that is tested; it is closed at the end
    weights      two sets of weights by name, with clearly different distributions
    score        (weights, tokens, temperature) -> the log-probability of each token given the tokens before it, in
                 nats, one value for each token. The first value is not read. Temperature 0 means temperature 1, as in
                 `Sampling`
    vocabulary   prompts are drawn from the ids below it. A sequence has at most 60 tokens
    text         tokens -> their text. Without it, stop strings are not tested
    tolerance    absolute, of log-probabilities; the default suits float32
    samples      the number of completions that are compared with the distribution

    Raises: AssertionError with the name of the check, the value and the expected value.
    """
    with closing(build()) as generator:
        case = Case(generator, weights, score, vocabulary, text, tolerance, samples, _TIMEOUT)
        for number, check in enumerate(CHECKS):
            try:
                case.load(2 * number)
                check(case)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}: {error}") from error


# --- requests and completions --------------------------------------------------------------------------------------


def collect_without_requests_returns_empty_list(case: Case) -> None:
    """`collect` returns an empty list, without waiting, if no request is in flight."""
    for timeout in (None, 0.0, 0.01):
        _assert_no_completions(case, timeout)
    case.generator.cancel(["unknown key"])
    case.generator.submit([])
    _assert_no_completions(case, None)


def _assert_no_completions(case: Case, timeout: float | None) -> None:
    completions = case.generator.collect(timeout)
    assert completions == [], f"collect(timeout={timeout}) without a request: got {completions}, expected an empty list"


def every_request_is_returned_once(case: Case) -> None:
    """Each request gives one completion with its key, `max_tokens` tokens, and a logp and a version for each token."""
    requests = [case.request(number, max_tokens=1 + number % 9) for number in range(40)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        count, limit = len(completion.tokens), request.sampling.max_tokens
        assert completion.finish == "length", f"finish without a stop: got {completion.finish!r}, expected 'length'"
        assert count == limit, f"number of tokens with finish 'length': got {count}, expected max_tokens, {limit}"
        _assert_aligned(completion)
        assert all(0 <= token < case.vocabulary for token in completion.tokens), (
            f"token ids: got {completion.tokens}, expected ids from 0 to {case.vocabulary - 1}"
        )


def _assert_aligned(completion: Completion) -> None:
    tokens, logp, version = (len(values) for values in (completion.tokens, completion.logp, completion.version))
    assert tokens == logp == version, (
        f"number of log-probabilities and versions: got {logp} and {version}, expected {tokens}, one for each token"
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
        completions = case.generator.collect(timeout=0.0)
    keys = [completion.key for completion in completions]
    assert keys == [request.key], f"keys of the completions: got {keys}, expected {[request.key]}"


def invalid_requests_are_refused(case: Case) -> None:
    """`submit` raises InputError for a request that can never be served, and then enqueues none of the requests."""
    valid = case.request(2)
    invalid = {
        "no tokens": evolve(valid, tokens=()),
        "a negative temperature": case.request(2, temperature=-0.5),
        "max_tokens=0": case.request(2, max_tokens=0),
        "the key of another request": case.request(3),
    }
    for problem, request in invalid.items():
        _assert_refused(case, [case.request(3), request], problem)
        completions = case.generator.collect(None)
        assert not completions, f"completions after a refused request with {problem}: got {completions}, expected none"
    case.generator.submit([valid])
    _assert_refused(case, [case.request(3), valid], "the key of a request in flight")
    case.wait([valid.key])
    case.run([valid])


def _assert_refused(case: Case, requests: Sequence[Request], problem: str) -> None:
    try:
        case.generator.submit(requests)
    except InputError:
        return
    raise AssertionError(f"submit of a request with {problem}: got no error, expected InputError")


# --- what a completion depends on ----------------------------------------------------------------------------------


def seed_determines_tokens(case: Case) -> None:
    """The same seed gives the same tokens, and different seeds give different tokens. All 64 bits of a seed count.

    Each request runs alone. A generator that is not `seeded` is not tested.
    """
    if not case.generator.capabilities.seeded:
        return
    requests = [evolve(case.request(7, max_tokens=12), key=str(seed), seed=seed) for seed in (0, 1, 2**40, 2**62 + 1)]
    first, second = ([case.run([request])[0].tokens for request in requests] for _ in range(2))
    assert first == second, f"tokens of repeated requests: got {second}, expected {first}"
    distinct = len(set(first))
    assert distinct == len(requests), (
        f"distinct completions of 12 tokens with {len(requests)} seeds: got {distinct}, expected {len(requests)}"
    )


def concurrent_requests_do_not_change_results(case: Case) -> None:
    """A completion is the same in a large batch, in another order, and alone.

    A generator that is not `batch_invariant` is not tested.
    """
    if not case.generator.capabilities.batch_invariant:
        return
    temperatures = [case.temperature * factor for factor in (1.0, 0.0, 0.6)]
    requests = [
        case.request(number, max_tokens=4 + number % 9, temperature=temperatures[number % 3]) for number in range(24)
    ]
    together = case.run(requests)
    for completions in (case.run(requests[::-1])[::-1], [case.run([request])[0] for request in requests]):
        for expected, actual in zip(together, completions, strict=True):
            assert actual.tokens == expected.tokens, (
                f"tokens of {expected.key!r}, alone or in another order: got {actual.tokens}, "
                f"expected {expected.tokens} as in the batch"
            )
            error = max(abs(a - b) for a, b in zip(actual.logp, expected.logp, strict=True))
            assert error <= case.tolerance, (
                f"logp of {expected.key!r}, alone or in another order: got a difference of {error} to the batch, "
                f"expected at most {case.tolerance}"
            )


def continued_completion_equals_single_completion(case: Case) -> None:
    """With greedy decoding, a request that continues a partial completion gives the rest of the full completion."""
    for number in range(6):
        request = case.request(number, temperature=0.0, max_tokens=10)
        full = case.run([request])[0].tokens
        continued = evolve(
            request, tokens=[*request.tokens, *full[:4]], sampling=evolve(request.sampling, max_tokens=6)
        )
        rest = case.run([continued])[0].tokens
        assert rest == full[4:], f"tokens after the first 4 of a completion: got {rest}, expected {full[4:]}"


# --- the end of a completion ---------------------------------------------------------------------------------------


def stop_tokens_end_completion(case: Case) -> None:
    """A completion ends with its first stop token, with finish "stop" even if it is the last token before the limit."""
    sampling = {"max_tokens": 12, "temperature": case.temperature}
    for number in range(8):
        full = case.run([case.request(number, **sampling)])[0].tokens
        stop, end = full[5], full.index(full[5]) + 1
        unused = next(token for token in range(len(full) + 1) if token not in full)
        for max_tokens in (12, end):
            changed = sampling | {"max_tokens": max_tokens, "stop_tokens": (unused, stop)}
            _assert_stopped(case.run([case.request(number, **changed)])[0], full[:end], f"stop token {stop}")
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
        full = case.run([case.request(number, **sampling)])[0].tokens
        stop = case.text(full[4:6])
        end = next(end for end in range(1, 13) if stop in case.text(full[:end]))
        unused = "\N{SNOWMAN}" * 3
        request = case.request(number, **sampling, stop_strings=(unused, stop))
        _assert_stopped(case.run([request])[0], full[:end], f"stop string {stop!r}")


def _assert_stopped(completion: Completion, tokens: Sequence[int], stop: str) -> None:
    assert completion.finish == "stop", f"finish with {stop}: got {completion.finish!r}, expected 'stop'"
    assert list(completion.tokens) == list(tokens), (
        f"tokens with {stop}: got {tuple(completion.tokens)}, expected {tuple(tokens)}"
    )


def cancel_returns_generated_tokens(case: Case) -> None:
    """A canceled request returns the tokens that were generated so far. The other requests run to their end.

    Tokens are compared with those of another run if the generator is both `seeded` and `batch_invariant`.
    """
    requests = [case.request(number, max_tokens=40) for number in range(12)]
    full = {completion.key: completion.tokens for completion in case.run(requests)}
    for delay in _DELAYS:
        case.generator.submit(requests)
        finished = {completion.key for _ in range(3) for completion in case.generator.collect(timeout=delay)}
        remaining = [key for key in full if key not in finished]
        canceled = remaining[::2]
        case.generator.cancel([*canceled, "unknown key"])
        completions = case.wait(remaining)
        if case.is_repeatable:
            for completion in completions:
                _assert_start(completion, full[completion.key])
        counts = [_count_after_cancel(completion, full, canceled) for completion in completions]
        if any(0 < count < len(full[key]) for key, count in zip(remaining, counts, strict=True)):
            return
    raise AssertionError("completions of canceled requests: got no tokens in any, expected the tokens generated so far")


def _assert_start(completion: Completion, full: Sequence[int]) -> None:
    expected = full[: len(completion.tokens)]
    assert completion.tokens == expected, (
        f"tokens of {completion.key!r} after cancel: got {completion.tokens}, expected {expected}"
    )


def _count_after_cancel(completion: Completion, full: Mapping[str, Sequence[int]], canceled: Sequence[str]) -> int:
    """Check the completion of a request that may be canceled, and return its number of tokens."""
    expected, count = full[completion.key], len(completion.tokens)
    _assert_aligned(completion)
    finish = "cancelled" if count < len(expected) else "length"
    assert completion.finish == finish, (
        f"finish with {count} of {len(expected)} tokens: got {completion.finish!r}, expected {finish!r}"
    )
    assert finish == "length" or completion.key in canceled, (
        f"tokens of {completion.key!r}, which was not canceled: got {count}, expected {len(expected)}"
    )
    return count


# --- the distribution ----------------------------------------------------------------------------------------------


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


# --- weights -------------------------------------------------------------------------------------------------------


def load_weights_replaces_weights(case: Case) -> None:
    """After `load_weights`, tokens have the new version and the log-probabilities of the new weights."""
    requests = [case.request(number, max_tokens=8) for number in range(8)]
    for version in (10**6, 10**6 + 1):
        case.load(version)
        for request, completion in zip(requests, case.run(requests), strict=True):
            assert set(completion.version) == {version}, (
                f"versions of the tokens: got {completion.version}, expected only {version}"
            )
            case.check_logp(request, completion)


def load_weights_applies_to_requests_in_flight(case: Case) -> None:
    """Requests in flight continue with the new weights; tokens that were sampled before keep the old version."""
    requests = [case.request(number, max_tokens=40, temperature=0.8) for number in range(10)]
    for attempt, delay in enumerate(_DELAYS):
        old, new = 10**6 + 2 * attempt, 10**6 + 2 * attempt + 1
        case.load(old)
        case.generator.submit(requests)
        finished = {c.key: c for _ in range(3) for c in case.generator.collect(timeout=delay)}
        case.load(new)
        in_flight = case.wait([request.key for request in requests if request.key not in finished])
        completions = finished | {completion.key: completion for completion in in_flight}
        for request in requests:
            versions = list(completions[request.key].version)
            assert set(versions) <= {old, new}, f"versions of the tokens: got {versions}, expected {old} and {new}"
            assert versions == sorted(versions), f"versions of the tokens: got {versions}, expected increasing versions"
            case.check_logp(request, completions[request.key])
        if any(len(set(completion.version)) > 1 for completion in in_flight):
            return
    raise AssertionError(
        "versions of requests in flight during load_weights: got one version in each completion, expected two in some"
    )


CHECKS = (
    collect_without_requests_returns_empty_list,
    every_request_is_returned_once,
    polling_makes_progress,
    invalid_requests_are_refused,
    seed_determines_tokens,
    concurrent_requests_do_not_change_results,
    continued_completion_equals_single_completion,
    stop_tokens_end_completion,
    stop_strings_end_completion,
    cancel_returns_generated_tokens,
    logp_equals_forward_pass,
    greedy_decoding_returns_argmax,
    sampled_pairs_match_probabilities,
    load_weights_replaces_weights,
    load_weights_applies_to_requests_in_flight,
)
"""All checks, in the order in which they run."""
