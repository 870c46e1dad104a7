"""Conformance suite for generators: `check_generator`.

    def test_generator_conforms() -> None:
        check_generator(build, weights=[first, second], score=score, vocabulary=32)

`score` is an independent implementation of the model: a plain forward pass that does not use the generator. The checks
are fastest and most sensitive with a small vocabulary, peaked distributions and float32.

Each check is a function of `Case` that raises AssertionError with a message. `CHECKS` lists them in order:

    requests       `submit` and `collect`: each request is refused, or answered once
    repetition     a completion depends on its request and the weights, and on nothing else
    ending         stop tokens, stop strings and `cancel`
    distribution   tokens and their log-probabilities
    weights        `load_weights`
    turns          requests that continue the sequence of an earlier request
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing

from torch import Tensor

from purerl.errors import ConfigError, nearest
from purerl.protocols import Generator
from purerl.testing.generator.case import Case
from purerl.testing.generator.distribution import (
    greedy_decoding_returns_argmax,
    logp_equals_forward_pass,
    sampled_pairs_match_probabilities,
)
from purerl.testing.generator.ending import (
    cancel_returns_generated_tokens,
    stop_strings_end_completion,
    stop_tokens_end_completion,
)
from purerl.testing.generator.repetition import (
    concurrent_requests_do_not_change_results,
    continued_completion_equals_single_completion,
    seed_determines_tokens,
)
from purerl.testing.generator.requests import (
    collect_without_requests_returns_empty_list,
    every_request_is_returned_once,
    invalid_requests_are_refused,
    polling_makes_progress,
)
from purerl.testing.generator.turns import (
    cancelled_sequence_can_be_continued,
    next_turns_equal_requests_of_their_own,
    next_turns_use_loaded_weights,
    sequence_can_be_continued_twice,
)
from purerl.testing.generator.weights import (
    load_weights_applies_to_requests_in_flight,
    load_weights_replaces_weights,
)

__all__ = ["CHECKS", "Case", "check_generator"]

_TIMEOUT = 120.0
"""Seconds until a check gives up waiting for completions."""

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
    next_turns_equal_requests_of_their_own,
    sequence_can_be_continued_twice,
    next_turns_use_loaded_weights,
    cancelled_sequence_can_be_continued,
)
"""All checks, in the order in which they run."""


def check_generator(
    build: Callable[[], Generator],
    *,
    weights: Sequence[Mapping[str, Tensor]],
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]],
    vocabulary: int,
    text: Callable[[Sequence[int]], str] | None = None,
    tolerance: float = 1e-4,
    samples: int = 2000,
    long: int = 40,
    exempt: Collection[str] = (),
) -> None:
    """Test that a generator satisfies `purerl.protocols.Generator`, and has the `capabilities` that it states.

    build        makes the generator that is tested; it is closed at the end
    weights      two sets of weights by name, with clearly different distributions
    score        (weights, tokens, temperature) -> the log-probability of each token given the tokens before it, in
                 nats, one value for each token. The first value is not read. Temperature 0 means temperature 1, as in
                 `Sampling`
    vocabulary   prompts are drawn from the ids below it. A sequence has at most 20 + `long` tokens
    text         tokens -> their text. Without it, stop strings are not tested
    tolerance    absolute, of log-probabilities; the default suits float32
    samples      the number of completions that are compared with the distribution
    long         new tokens of requests that are interrupted: so many that a fast engine has not finished before
    exempt       names of checks that are not run

    A generator may return any kind of sequence, and must accept requests and prompts in any: lists and tuples are
    submitted.

    Raises: AssertionError with the name of the check, the value and the expected value, and both requests if their
        completions are compared; ConfigError if a name in `exempt` is not a check.
    """
    known = [check.__name__ for check in CHECKS]
    for name in exempt:
        if name not in known:
            raise ConfigError("an exemption", got=repr(name), need="the name of a check", do=nearest(name, known))
    with closing(build()) as generator:
        case = Case(generator, weights, score, vocabulary, text, tolerance, samples, long, _TIMEOUT)
        for number, check in enumerate(CHECKS):
            if check.__name__ in exempt:
                continue
            try:
                case.load(2 * number)
                check(case)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}: {error}") from error
