"""What every generator has to do, as a suite for anyone's: `check_generator`.

    def test_it() -> None:
        check_generator(build, weights=[first, second], score=score, vocabulary=32)

`score` is the oracle: a plain forward pass, which is not the generator's. A model of few tokens and peaked
distributions, in float32, makes the checks fast and sharp.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from purerl.errors import InputError
from purerl.protocols import Completion, Generator, Request, Sampling

__all__ = ["CHECKS", "Case", "check_generator"]

_PATIENCE = 120.0
"""Seconds that requests may take."""

_WAITS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Seconds to wait for requests to be under way: an engine that decodes on its own may not have begun, or be done."""


@frozen
class Case:
    """A generator and what is known about it, which is what each check takes."""

    generator: Generator
    weights: Sequence[Mapping[str, Tensor]]
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]]
    vocabulary: int
    text: Callable[[Sequence[int]], str] | None
    tolerance: float
    samples: int

    def load(self, version: int) -> None:
        """Load weights ``version % 2`` as `version`."""
        self.generator.load_weights(self.weights[version % 2].items(), version=version)

    def request(self, number: int, **sampling: Any) -> Request:
        """The `number`-th request: its prompt, of 1 to 12 tokens, and its seed depend on that."""
        draw = random.Random(number)
        prompt = [draw.randrange(self.vocabulary) for _ in range(1 + number * 5 % 12)]
        return Request(f"request {number}", prompt, Sampling(**{"max_tokens": 6, **sampling}), seed=number)

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Submit `requests` and return their completions, in the same order."""
        self.generator.submit(requests)
        return self.wait([request.key for request in requests])

    def wait(self, keys: Sequence[str]) -> list[Completion]:
        """Collect until each of `keys` has come back once, and nothing else."""
        done: dict[str, Completion] = {}
        begin = time.monotonic()
        while missing := [key for key in keys if key not in done]:
            asked = time.monotonic()
            assert asked - begin < _PATIENCE, f"after {_PATIENCE} s these have not come back: {missing}"
            found = self.generator.collect(timeout=1.0)
            idle = not found and time.monotonic() - asked < 0.5
            assert not idle, f"collect answers at once that nothing is in flight; these never came back: {missing}"
            for completion in found:
                assert completion.key in keys, f"a completion with a key that was not asked for: {completion.key!r}"
                assert completion.key not in done, f"{completion.key!r} came back twice"
                done[completion.key] = completion
        left = self.generator.collect(timeout=0.0)
        assert not left, f"completions of no request: {[completion.key for completion in left]}"
        return [done[key] for key in keys]

    def check_logp(self, request: Request, completion: Completion) -> None:
        """Every token's log-probability is that of a forward pass of the weights whose version it bears."""
        tokens, before = [*request.tokens, *completion.tokens], len(request.tokens)
        for version in set(completion.version):
            expected = self.score(self.weights[version % 2], tokens, request.sampling.temperature)[before:]
            for place, (got, need) in enumerate(zip(completion.logp, expected, strict=True)):
                if completion.version[place] == version:
                    what = f"new token {place} at temperature {request.sampling.temperature}, version {version}"
                    assert abs(got - need) <= self.tolerance, f"{what}: logp {got}, by a forward pass {need}"


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
    """Raise AssertionError if the generator that `build` makes does not do what `purerl.protocols.Generator` says.

    weights      two sets of weights, by name, that differ in what is likely
    score        (weights, tokens, temperature) -> the log-probability in nats of each token given those before it, as
                 many as there are tokens; the first is not read. At temperature 0 it is that at 1, as in `Sampling`
    vocabulary   prompts are drawn from ids below it; sequences have up to 60 tokens
    text         the text of tokens, if stop texts are to be checked
    tolerance    between log-probabilities; 1e-4 is for float32
    samples      how many completions of two tokens the check of their distribution draws
    """
    generator = build()
    case = Case(generator, weights, score, vocabulary, text, tolerance, samples)
    for version, check in enumerate(CHECKS):
        try:
            case.load(2 * version)
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
    generator.close()


# --- what comes back -----------------------------------------------------------------------------------------------


def nothing_in_flight_is_an_empty_answer(case: Case) -> None:
    for timeout in (None, 0.0, 0.01):
        assert case.generator.collect(timeout) == [], "completions without requests"
    case.generator.cancel(["nobody's"])
    case.generator.submit([])
    assert case.generator.collect(None) == [], "completions without requests"


def every_request_comes_back_once(case: Case) -> None:
    requests = [case.request(number, max_tokens=1 + number % 9) for number in range(40)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        count, limit = len(completion.tokens), request.sampling.max_tokens
        assert completion.finish == "length", f"finish {completion.finish!r} without anything to stop at"
        assert count == limit, f"{count} tokens, finish 'length', with max_tokens {limit}"
        assert len(completion.logp) == len(completion.version) == count, "not one log-probability and version per token"
        assert all(0 <= token < case.vocabulary for token in completion.tokens), f"ids outside: {completion.tokens}"


def polling_makes_progress(case: Case) -> None:
    request, begin = case.request(1, max_tokens=16), time.monotonic()
    case.generator.submit([request])
    found: list[Completion] = []
    while not found:
        assert time.monotonic() - begin < _PATIENCE, (
            "collect(timeout=0) never gives anything, however often it is called"
        )
        found = case.generator.collect(timeout=0.0)
    assert [completion.key for completion in found] == [request.key], "not the request that was submitted"


def impossible_requests_are_refused(case: Case) -> None:
    fine = case.request(2)
    bad = {
        "no tokens": evolve(fine, tokens=()),
        "a negative temperature": case.request(2, temperature=-0.5),
        "no new tokens": case.request(2, max_tokens=0),
        "the key of another one": case.request(3),
    }
    for what, request in bad.items():
        _check_refused(case, [case.request(3), request], what)
        assert not case.generator.collect(None), f"requests beside one with {what} were enqueued before it was refused"
    case.generator.submit([fine])
    _check_refused(case, [case.request(3), fine], "the key of one in flight")
    case.wait([fine.key])
    case.run([fine])


def _check_refused(case: Case, requests: Sequence[Request], what: str) -> None:
    try:
        case.generator.submit(requests)
    except InputError:
        return
    raise AssertionError(f"a request with {what} was accepted; it is an InputError")


# --- what it depends on --------------------------------------------------------------------------------------------


def the_seed_decides(case: Case) -> None:
    requests = [evolve(case.request(7, max_tokens=12), key=str(seed), seed=seed) for seed in (0, 1, 2**40, 2**62 + 1)]
    first, again = case.run(requests), case.run(requests)
    assert [one.tokens for one in first] == [one.tokens for one in again], "the same request gives other tokens"
    found = len({completion.tokens for completion in first})
    assert found == len(requests), f"{found} different completions of 12 tokens with {len(requests)} seeds"


def neighbors_do_not_matter(case: Case) -> None:
    requests = [
        case.request(number, max_tokens=4 + number % 9, temperature=(1.0, 0.0, 0.6)[number % 3]) for number in range(24)
    ]
    together = case.run(requests)
    for other in (case.run(requests[::-1])[::-1], [case.run([request])[0] for request in requests]):
        for one, two in zip(together, other, strict=True):
            assert one.tokens == two.tokens, f"{one.key}: its tokens depend on what runs beside it, or on the order"
            difference = max(abs(a - b) for a, b in zip(one.logp, two.logp, strict=True))
            assert difference <= case.tolerance, f"{one.key}: its log-probabilities depend on others, by {difference}"


def a_completion_can_be_continued(case: Case) -> None:
    for number in range(6):
        request = case.request(number, temperature=0.0, max_tokens=10)
        whole = case.run([request])[0].tokens
        longer = evolve(request, tokens=[*request.tokens, *whole[:4]], sampling=evolve(request.sampling, max_tokens=6))
        rest = case.run([longer])[0].tokens
        assert rest == whole[4:], f"continued after 4 tokens it goes on {rest}, in one go {whole[4:]}"


# --- how it ends ---------------------------------------------------------------------------------------------------


def stop_tokens_end_a_completion(case: Case) -> None:
    for number in range(8):
        whole = case.run([case.request(number, max_tokens=12)])[0].tokens
        stop, end = whole[5], whole.index(whole[5]) + 1
        other = next(token for token in range(len(whole) + 1) if token not in whole)
        for most in (12, end):  # a stop counts as one where the length is reached too
            stopped = case.run([case.request(number, max_tokens=most, stop_tokens=(other, stop))])[0]
            _ends(stopped, whole[:end], f"stop token {stop}")
        unstopped = case.run([case.request(number, max_tokens=12, stop_tokens=(other,))])[0]
        assert unstopped.finish == "length", f"stopped at a token that it does not have: {other}"


def stop_texts_end_a_completion(case: Case) -> None:
    if case.text is None:
        return
    for number in range(8):
        whole = case.run([case.request(number, max_tokens=12)])[0].tokens
        stop = case.text(whole[4:6])
        end = next(end for end in range(1, 13) if stop in case.text(whole[:end]))
        unlikely = "\N{SNOWMAN}" * 3
        _ends(
            case.run([case.request(number, max_tokens=12, stop_strings=(unlikely, stop))])[0],
            whole[:end],
            f"text {stop!r}",
        )


def _ends(completion: Completion, tokens: Sequence[int], what: str) -> None:
    assert completion.finish == "stop", f"finish {completion.finish!r} in spite of {what}"
    assert list(completion.tokens) == list(tokens), f"{what} gives {completion.tokens}, it should end {tuple(tokens)}"


def cancelled_requests_return_their_tokens(case: Case) -> None:
    requests = [case.request(number, max_tokens=40) for number in range(12)]
    whole = {completion.key: completion.tokens for completion in case.run(requests)}
    for seconds in _WAITS:
        case.generator.submit(requests)
        early = {completion.key for _ in range(3) for completion in case.generator.collect(timeout=seconds)}
        left = [key for key in whole if key not in early]
        case.generator.cancel([*left[::2], "nobody's"])
        counts = [_cut_short(completion, whole, left[::2]) for completion in case.wait(left)]
        if any(0 < count < len(whole[key]) for key, count in zip(left, counts, strict=True)):
            return
    raise AssertionError("no cancelled request ever comes back with tokens: those that it had are lost")


def _cut_short(completion: Completion, whole: Mapping[str, Sequence[int]], cancelled: Sequence[str]) -> int:
    full, count = whole[completion.key], len(completion.tokens)
    assert count == len(completion.logp) == len(completion.version), "not one log-probability and version per token"
    assert completion.tokens == full[:count], "tokens of a cancelled request are not those that it had so far"
    finish = "cancelled" if count < len(full) else "length"
    assert completion.finish == finish, f"finish {completion.finish!r} with {count} of {len(full)} tokens"
    assert finish == "length" or completion.key in cancelled, "cut short, and was not cancelled"
    return count


# --- which distribution it is --------------------------------------------------------------------------------------


def logp_is_that_of_a_forward_pass(case: Case) -> None:
    temperatures = (1.0, 0.5, 1.7, 0.0)
    requests = [case.request(number, max_tokens=10, temperature=temperatures[number % 4]) for number in range(16)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        case.check_logp(request, completion)


def greedy_takes_the_likeliest(case: Case) -> None:
    for number in range(4):
        request = case.request(number, temperature=0.0, max_tokens=1)
        best = case.run([request])[0].logp[0]
        for token in range(min(case.vocabulary, 64)):
            other = case.score(case.weights[0], [*request.tokens, token], 0.0)[-1]
            assert other <= best + case.tolerance, f"token {token} has log-probability {other}, the greedy one {best}"


def pairs_have_their_probability(case: Case) -> None:
    """Two tokens, not one: their joint distribution shows whether the second is drawn afresh.

    A pair that occurs has the probability exp(logp + logp); another check compares these with a forward pass. By
    Bernstein's inequality its share of n samples is off by more than sqrt(2 p (1 - p) t / n) + t / (3 n) with
    probability 2 exp(-t) at most. t = 25 leaves 3e-11, so less than 1e-6 for the 10,000 pairs of 100 tokens together.
    """
    for temperature in (1.0, 0.5):
        base, n, t = case.request(3, max_tokens=2, temperature=temperature), case.samples, 25.0
        done = case.run([evolve(base, key=str(seed), seed=seed) for seed in range(n)])
        probability = {completion.tokens: math.exp(sum(completion.logp)) for completion in done}
        for pair, count in Counter(completion.tokens for completion in done).items():
            p, share = probability[pair], count / n
            bound = math.sqrt(2 * max(p * (1 - p), 0) * t / n) + t / (3 * n)
            assert abs(share - p) <= bound, f"tokens {pair}: {share} of {n} samples, probability {p} at {temperature}"


# --- weights -------------------------------------------------------------------------------------------------------


def weights_are_replaced(case: Case) -> None:
    requests = [case.request(number, max_tokens=8) for number in range(8)]
    for version in (10**6, 10**6 + 1):
        case.load(version)
        for request, completion in zip(requests, case.run(requests), strict=True):
            assert set(completion.version) == {version}, f"versions {completion.version}, loaded was {version}"
            case.check_logp(request, completion)


def weights_are_replaced_in_flight(case: Case) -> None:
    requests = [case.request(number, max_tokens=40, temperature=0.8) for number in range(10)]
    for attempt, seconds in enumerate(_WAITS):
        old, new = 10**6 + 2 * attempt, 10**6 + 2 * attempt + 1
        case.load(old)
        case.generator.submit(requests)
        early = {done.key: done for _ in range(3) for done in case.generator.collect(timeout=seconds)}
        case.load(new)
        late = case.wait([request.key for request in requests if request.key not in early])
        done = early | {completion.key: completion for completion in late}
        for request in requests:
            versions = list(done[request.key].version)
            assert set(versions) <= {old, new}, f"versions {versions}, loaded were {old} and {new}"
            assert versions == sorted(versions), f"versions {versions} go back"
            case.check_logp(request, done[request.key])
        if any(len(set(completion.version)) > 1 for completion in late):
            return
    raise AssertionError("weights that are loaded in flight never change the version of what is under way")


CHECKS = (
    nothing_in_flight_is_an_empty_answer,
    every_request_comes_back_once,
    polling_makes_progress,
    impossible_requests_are_refused,
    the_seed_decides,
    neighbors_do_not_matter,
    a_completion_can_be_continued,
    stop_tokens_end_a_completion,
    stop_texts_end_a_completion,
    cancelled_requests_return_their_tokens,
    logp_is_that_of_a_forward_pass,
    greedy_takes_the_likeliest,
    pairs_have_their_probability,
    weights_are_replaced,
    weights_are_replaced_in_flight,
)
