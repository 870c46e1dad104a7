"""Checks of requests that continue the sequence of an earlier request, as the turns of an episode do.

A generator may keep what it has computed for a sequence. These checks find one that keeps too much, too little or
something else.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from purerl.protocols import Completion, Request
from purerl.testing.generator.case import DELAYS, Case
from purerl.testing.generator.comparison import Answer, assert_same_tokens

__all__ = [
    "cancelled_sequence_can_be_continued",
    "next_turns_equal_forward_pass",
    "next_turns_equal_requests_of_their_own",
    "next_turns_use_loaded_weights",
    "sequence_can_be_continued_twice",
]


def next_turns_equal_forward_pass(case: Case) -> None:
    """A turn that continues a finished request has the log-probabilities of a forward pass of the whole sequence.

    Some turns end with a stop token.
    """
    for keep in (True, False):
        requests = _first_turns(case, keep=keep)
        for _ in range(3):
            requests = _next_turns(case, requests, _run_and_check(case, requests))


def next_turns_equal_requests_of_their_own(case: Case) -> None:
    """The tokens of a turn are those of the same request without the earlier turns.

    After weights are loaded, nothing is kept of the earlier turns.
    """
    for keep in (True, False):
        case.load(0)
        requests = _first_turns(case, keep=keep)
        completions = case.run(requests)
        for turn in (1, 2):
            requests = _next_turns(case, requests, completions)
            completions = case.run(requests)
            case.load(0)
            for request, completion, alone in zip(requests, completions, case.run(requests), strict=True):
                how = f"turn {turn} of an episode with keep={keep}", "without the earlier turns"
                assert_same_tokens(Answer(request, completion, how[0]), Answer(request, alone, how[1]))


def _first_turns(case: Case, *, keep: bool) -> list[Request]:
    return [evolve(case.request(number, max_tokens=3 + number % 5), keep=keep) for number in range(10)]


def _next_turns(case: Case, requests: Sequence[Request], completions: Sequence[Completion]) -> list[Request]:
    pairs = enumerate(zip(requests, completions, strict=True))
    return [_next(case, request, completion, stop=number % 3 == 0) for number, (request, completion) in pairs]


def sequence_can_be_continued_twice(case: Case) -> None:
    """Several requests continue one finished request: two together, and two one after the other."""
    requests = [evolve(case.request(number), keep=True) for number in range(6)]
    pairs = [*zip(requests, case.run(requests), strict=True)]
    others = [evolve(_next(case, *pair, added=k), key=f"branch {k} of {pair[0].key}") for pair in pairs for k in (1, 2)]
    _run_and_check(case, others)
    for added in (0, 3):
        _run_and_check(case, [_next(case, *pair, added=added) for pair in pairs])


def next_turns_use_loaded_weights(case: Case) -> None:
    """Weights that are loaded between two turns are those of the next turn, also for the tokens that it reads."""
    case.load(10**6)
    requests = [evolve(case.request(number), keep=True) for number in range(8)]
    completions = case.run(requests)
    case.load(10**6 + 1)
    later = [_next(case, *pair) for pair in zip(requests, completions, strict=True)]
    for completion in _run_and_check(case, later):
        assert set(completion.version) == {10**6 + 1}, (
            f"versions of the tokens after load_weights: got {completion.version}, expected only {10**6 + 1}"
        )


def cancelled_sequence_can_be_continued(case: Case) -> None:
    """Requests that continue canceled ones, with their tokens and others, equal a forward pass."""
    requests = [evolve(case.request(number, max_tokens=case.long), keep=True) for number in range(8)]
    counts = set[int]()
    for delay in DELAYS:
        finished = case.start(requests, delay)
        remaining = [request.key for request in requests if request.key not in finished]
        case.generator.cancel(remaining)
        canceled = {completion.key: completion for completion in case.wait(remaining)}
        counts |= {len(completion.tokens) for completion in canceled.values()}
        if counts - {0, case.long}:
            break
    else:
        raise AssertionError(
            f"tokens of canceled requests: got {sorted(counts)}, expected some between 0 and {case.long}"
        )
    pairs = [(request, canceled[request.key]) for request in requests if request.key in canceled]
    for added in (0, 2):
        _run_and_check(case, [_next(case, *pair, added=added) for pair in pairs])


def _run_and_check(case: Case, requests: Sequence[Request]) -> list[Completion]:
    """Run `requests`, and compare their log-probabilities with a forward pass."""
    completions = case.run(requests)
    for request, completion in zip(requests, completions, strict=True):
        case.check_logp(request, completion)
    return completions


def _next(case: Case, request: Request, completion: Completion, *, added: int = 2, stop: bool = False) -> Request:
    """The next turn: prompt, completion and `added` other tokens, with another seed, and a stop token if `stop`."""
    answer = [(request.seed + 3 * k) % case.vocabulary for k in range(added)]
    sampling = evolve(request.sampling, max_tokens=6, stop_tokens=tuple(range(case.vocabulary // 4)) if stop else ())
    tokens = [*request.tokens, *completion.tokens, *answer]
    return evolve(request, tokens=tokens, sampling=sampling, seed=request.seed + 10**6)
