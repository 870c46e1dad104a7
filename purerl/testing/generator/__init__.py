"""Conformance suite for generators: `check_generator`.

    def test_generator_conforms() -> None:
        print(check_generator(build, weights=[first, second], score=score, vocabulary=32))

`score` is an independent implementation of the model: a plain forward pass that does not use the generator. The checks
are fastest and most sensitive with a small vocabulary, peaked distributions and float32.

Each check is a function of `Case` that raises AssertionError with a message. `ALWAYS` has those that every generator
must pass, `SAMPLING` and `EXACT` those of capabilities that a generator may state:

    requests       `submit` and `collect`: each request is refused, or answered once
    weights        `load_weights`
    randomness     random numbers: each token of each request has one of its own
    distribution   tokens and their log-probabilities
    repetition     a completion depends on its request and the weights, and on nothing else
    ending         stop tokens, stop strings and `cancel`
    episode_turns  requests that continue the sequence of an earlier request
    parameters     the parameters in `Capabilities.sampling`

A check tests what the checks after it rely on, so of several failures the first one is the cause. Each has to detect
its planted errors: docs/reference/planted_errors.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing

from attrs import frozen
from torch import Tensor

from purerl.protocols import Generator
from purerl.testing.generator import (
    distribution,
    ending,
    episode_turns,
    parameters,
    randomness,
    repetition,
    requests,
    weights,
)
from purerl.testing.generator.case import Case
from purerl.testing.suite import check_exemptions, run_check

__all__ = ["ALWAYS", "EXACT", "SAMPLING", "Case", "Conformance", "check_generator"]

_TIMEOUT = 120.0
"""Seconds until a check gives up waiting for completions."""

ALWAYS = (
    requests.collect_without_requests_returns_empty_list,
    requests.every_request_is_returned_once,
    requests.polling_makes_progress,
    requests.invalid_requests_are_refused,
    requests.log_probabilities_are_finite,
    weights.each_token_has_the_version_of_its_weights,
    weights.load_weights_replaces_weights,
    weights.loaded_weights_are_copied,
    weights.unknown_weights_are_refused,
    weights.weights_of_another_shape_are_refused,
    randomness.each_request_has_random_numbers_of_its_own,
    distribution.every_token_can_be_sampled,
    distribution.logp_equals_forward_pass,
    distribution.greedy_decoding_returns_argmax,
    repetition.continued_completion_equals_single_completion,
    distribution.sampled_tokens_match_probabilities,
    randomness.each_token_has_a_random_number_of_its_own,
    distribution.tokens_are_sampled_at_the_temperature,
    ending.stop_tokens_end_completion,
    ending.stop_strings_end_completion,
    ending.cancel_returns_generated_tokens,
    weights.load_weights_applies_to_requests_in_flight,
    episode_turns.next_turns_equal_forward_pass,
    episode_turns.sequence_can_be_continued_twice,
    episode_turns.next_turns_use_loaded_weights,
    episode_turns.cancelled_sequence_can_be_continued,
)
"""The checks that every generator must pass, in the order in which they run."""

SAMPLING = {
    parameters.min_tokens_delays_the_end: ("min_tokens",),
    parameters.sampling_parameters_change_probabilities: (),
    parameters.top_k_of_one_is_greedy_decoding: ("top_k",),
    parameters.completion_matches_regex: ("regex",),
}
"""The checks that follow, each with what a generator must have in `capabilities.sampling` for it."""

REFUSED = (weights.weights_of_an_adapter_are_refused,)
"""The checks of generators without `capabilities.adapters`, which run after those above."""

EXACT = {
    repetition.seed_determines_tokens: ("seeded",),
    repetition.concurrent_requests_do_not_change_results: ("batch_invariant",),
    ending.canceled_completions_begin_whole_completions: ("seeded", "batch_invariant"),
    episode_turns.next_turns_equal_requests_of_their_own: ("seeded", "batch_invariant"),
}
"""The last checks, each with the capabilities that a generator must state for it."""

_ARGUMENTS = {
    ending.stop_strings_end_completion: "text",
    parameters.completion_matches_regex: "text",
    parameters.sampling_parameters_change_probabilities: "logits",
}
"""Checks that need an argument of `check_generator`."""


def check_generator(
    build: Callable[[], Generator],
    *,
    weights: Sequence[Mapping[str, Tensor]],
    score: Callable[[Mapping[str, Tensor], Sequence[int], float], Sequence[float]],
    vocabulary: int,
    text: Callable[[Sequence[int]], str] | None = None,
    logits: Callable[[Mapping[str, Tensor], Sequence[int]], Sequence[float]] | None = None,
    tolerance: float = 1e-4,
    samples: int = 2000,
    long: int = 40,
    exempt: Collection[str] = (),
) -> Conformance:
    """Test that a generator satisfies `purerl.protocols.Generator`, and has the `capabilities` that it states.

    Always, without any use of seeds:

    - each request is answered once, with a log-probability and a version for each token, or refused with InputError
    - `collect` returns at once if no request is in flight; polling it without waiting makes progress
    - weights with an unknown name or another shape raise EngineError; others are copied, and used from then on, also by
      requests in flight; each token has the version of its weights
    - each token of each request has a random number of its own, and no token is left out
    - log-probabilities are those of `score`, also of several turns; greedy decoding returns the most likely token
    - frequencies of tokens and of pairs fit the probabilities of `score`; a temperature that is 5 % off is detected
    - stop tokens, stop strings and `max_tokens` end a completion, and `finish` says which
    - canceled requests return the tokens that were sampled so far, and can be continued; the others run to their end
    - the parameters of `capabilities.sampling` keep the tokens of their definitions, and log-probabilities follow

    Exactly, if `capabilities` say so:

    - `seeded`: a request that runs alone has the same tokens again, and other tokens with another seed
    - `batch_invariant`: a request has the same tokens alone, beside others, and in another order
    - both: a canceled completion is the beginning of the whole one; a turn has the tokens of a request of its own

    build        makes the generator, which is closed at the end
    weights      two sets by name, with clearly different distributions; the first one is not uniform, and at a
                 temperature of 8 no token has a probability above 0.5
    score        (weights, tokens, temperature) -> the log-probability of each token given the tokens before it, in
                 nats; the first one is not read. Temperature 0 means temperature 1, as in `Sampling`
    vocabulary   the number of token ids; `score` is called for each of them. A default `top_k` of the engine that is
                 not smaller cannot be noticed, so take more than 64. A sequence has 20 + `long` tokens at most
    text         tokens -> their text, for stop strings and regular expressions
    logits       (weights, tokens) -> the logits of all tokens that may follow
    tolerance    absolute, of log-probabilities; the default suits float32
    samples      completions whose frequencies are tested. A right generator fails with a probability of about 1e-6. The
                 temperature is tested with as many tokens as are needed, about 20000
    long         new tokens of requests that are interrupted: so many that a fast engine has not finished before
    exempt       names of checks that are not run

    Lists and tuples are submitted. The result says which checks have passed, and why others were left out.

    Raises: AssertionError with the name of the check, the values, the requests and the rule, also if the generator
        raises an exception; ConfigError for an unknown name in `exempt`, and weights that hide a wrong temperature.
    """
    check_exemptions(exempt, _all_checks())
    with closing(build()) as generator:
        case = Case(generator, weights, score, vocabulary, text, logits, tolerance, samples, long, _TIMEOUT)
        distribution.flat_temperature(case)
        left_out = _left_out(case) | dict.fromkeys(exempt, "exempt")
        return Conformance(_run(case, left_out), left_out)


def _all_checks() -> tuple[Callable[[Case], None], ...]:
    return (*ALWAYS, *SAMPLING, *REFUSED, *EXACT)


def _run(case: Case, left_out: Collection[str]) -> tuple[str, ...]:
    """The names of the checks that have passed: all but `left_out`."""
    checks = [check for check in _all_checks() if check.__name__ not in left_out]
    for number, check in enumerate(checks):
        case.load(2 * number)
        run_check(check, case)
    return tuple(check.__name__ for check in checks)


def _left_out(case: Case) -> dict[str, str]:
    capabilities = case.generator.capabilities
    missing = {
        check.__name__: [f"capabilities.{name}" for name in needs if not getattr(capabilities, name)]
        for check, needs in EXACT.items()
    }
    missing |= {
        check.__name__: [f"{name} in capabilities.sampling" for name in needs if name not in capabilities.sampling]
        for check, needs in SAMPLING.items()
    }
    reasons = {name: f"{' and '.join(names)} not stated" for name, names in missing.items() if names}
    reasons |= {check.__name__: "capabilities.adapters stated" for check in REFUSED if capabilities.adapters}
    without = {check.__name__: name for check, name in _ARGUMENTS.items() if getattr(case, name) is None}
    return reasons | {name: f"no argument `{argument}`" for name, argument in without.items()}


@frozen
class Conformance:
    """The names of the checks that have passed, and of those that were left out, with the reason.

    >>> print(Conformance(("polling_makes_progress",), {"seed_determines_tokens": "capabilities.seeded not stated"}))
    1 check passed, 1 left out
      seed_determines_tokens: capabilities.seeded not stated
    """

    passed: tuple[str, ...]
    left_out: Mapping[str, str]

    def __str__(self) -> str:
        count = f"{len(self.passed)} check{'' if len(self.passed) == 1 else 's'} passed, {len(self.left_out)} left out"
        return "\n".join([count, *(f"  {name}: {reason}" for name, reason in self.left_out.items())])
