"""Checks of the distribution that tokens are sampled from, and of their log-probabilities.

No seed is needed: sampled tokens are compared with a forward pass by statistical tests. A generator that is right fails
one with a probability of about `MIN_P_VALUE`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from attrs import evolve

from purerl.errors import ConfigError
from purerl.protocols import Completion
from purerl.testing.generator.case import Case
from purerl.testing.generator.chi_square import chi_square

__all__ = [
    "MIN_P_VALUE",
    "assert_fit",
    "every_token_can_be_sampled",
    "flat_temperature",
    "greedy_decoding_returns_argmax",
    "logp_equals_forward_pass",
    "next_tokens",
    "sample",
    "sampled_tokens_match_probabilities",
    "tokens_are_sampled_at_the_temperature",
]

MIN_P_VALUE = 1e-6
"""Frequencies with a smaller p-value are wrong."""

Outcome = TypeVar("Outcome", bound=Hashable)


def logp_equals_forward_pass(case: Case) -> None:
    """The log-probability of each token is that of the model, at the sampling temperature, for both sets of weights."""
    temperatures = (1.0, 0.5, 1.7, 0.0, flat_temperature(case))
    requests = [case.request(number, max_tokens=10, temperature=temperatures[number % 5]) for number in range(15)]
    for version in (10**6, 10**6 + 1):
        case.load(version)
        for request, completion in zip(requests, case.run(requests), strict=True):
            case.check_logp(request, completion)


def greedy_decoding_returns_argmax(case: Case) -> None:
    """At temperature 0 no token has a higher log-probability than the token that is returned."""
    requests = [case.request(number, temperature=0.0, max_tokens=1) for number in range(4)]
    for request, completion in zip(requests, case.run(requests), strict=True):
        expected, [token] = case.next_logp(request.tokens, 0.0), completion.tokens
        largest = max(expected)
        assert expected[token] >= largest - 2 * case.tolerance, (
            f"token {token} at temperature 0: got the logp {expected[token]}, expected the largest, that of token "
            f"{expected.index(largest)}: {largest}"
        )


def sampled_tokens_match_probabilities(case: Case) -> None:
    """The frequencies of the next token of a prompt fit its probabilities, at several temperatures.

    All samples run together.
    """
    for temperature in (1.0, 0.5, 1.7, flat_temperature(case)):
        counts = Counter(completion.tokens for completion in sample(case, temperature, max_tokens=1))
        what = f"tokens in {case.samples} samples at temperature {temperature}"
        assert_fit(counts, next_tokens(case, (), temperature), what)


def sample(case: Case, temperature: float, max_tokens: int, count: int | None = None) -> list[Completion]:
    """Completions of one prompt with different seeds, which run together; `case.samples` without `count`."""
    request = case.request(3, max_tokens=max_tokens, temperature=temperature)
    return case.run([evolve(request, key=str(seed), seed=seed) for seed in range(count or case.samples)])


def next_tokens(case: Case, start: tuple[int, ...], temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of each token after the prompt of `sample` and `start`; the keys are `start` and the token."""
    logp = case.next_logp([*case.request(3).tokens, *start], temperature)
    return {(*start, token): math.exp(value) for token, value in enumerate(logp)}


def assert_fit(counts: Mapping[Outcome, int], probabilities: Mapping[Outcome, float], what: str) -> None:
    """Raise AssertionError unless `counts` fit `probabilities` by a chi-square test."""
    n, result = sum(counts.values()), chi_square(counts, probabilities)
    worst = max(probabilities, key=lambda key: abs(counts.get(key, 0) - n * probabilities[key]))
    assert result.p_value >= MIN_P_VALUE, (
        f"frequencies of {what}: got a p-value of {result.p_value:.3g} "
        f"(chi-square {result.statistic:.4g}, {result.degrees} degrees of freedom), expected at least {MIN_P_VALUE}; "
        f"tokens {worst}: got {counts.get(worst, 0)}, expected about {n * probabilities[worst]:.4g}"
    )


# --- a distribution that is nearly uniform -------------------------------------------------------------------------


def every_token_can_be_sampled(case: Case) -> None:
    """No token is left out, as by a default `top_k`, `top_p` or `min_p` of the engine.

    The temperature is one at which the most likely token is twice as likely as the least likely one, or the highest one
    that the engine accepts. If tokens that are expected 20 times or more are missing, only the least likely ones, and
    the others have the probabilities among themselves that they should have, the engine filters.
    """
    logp = case.next_logp(case.request(3).tokens, 1.0)
    temperature = min(max(1.0, (max(logp) - min(logp)) / math.log(2)), case.max_temperature)
    expected = _softmax([value / temperature for value in logp])
    number = min(math.ceil(20 / min(expected)), 100 * case.vocabulary)
    completions = sample(case, temperature, max_tokens=1, count=number)
    counts = Counter(completion.tokens for completion in completions)
    missing = [token for token, p in enumerate(expected) if (token,) not in counts and p * number >= 20]
    if not missing or max(logp[token] for token in missing) > min(logp[token] for (token,) in counts):
        return
    kept = {tokens: math.exp(logp[tokens[0]] / temperature) for tokens in counts}
    fit = chi_square(counts, {tokens: p / sum(kept.values()) for tokens, p in kept.items()})
    assert fit.p_value < MIN_P_VALUE, (
        f"tokens {missing}: got none in {len(completions)} samples at temperature {temperature:.4g}, expected at least "
        f"20 of each. They are the {len(missing)} least likely ones of {case.vocabulary}: the engine has a default of "
        f"top_k, top_p or min_p"
    )


# --- the temperature -----------------------------------------------------------------------------------------------

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
_MAX_PROBABILITY, _MIN_VARIANCE = 0.5, 0.2
_ERROR = 0.05
"""The relative error of a temperature that is detected."""
_INFORMATION = (7.0 / _ERROR) ** 2
"""With so much, an error of 5 % shifts the statistic by seven standard deviations, of which 4.9 are an error."""


def flat_temperature(case: Case) -> float:
    """The temperature at which tokens say most about the temperature, and none has a probability above 0.5.

        information(T) = Var_p(log p),  p = softmax(z / T)

    It is 0 for a distribution with one certain token, and for a uniform one: both are the same at each temperature.

    Raises: ConfigError for weights with which no temperature is suitable.
    """
    by_temperature = _information(case)
    temperature = max(by_temperature, key=lambda each: by_temperature[each], default=None)
    if temperature is None or by_temperature[temperature] < _MIN_VARIANCE:
        highest = min(TEMPERATURES[-1], case.max_temperature)
        got = (
            f"a token with a probability above {_MAX_PROBABILITY} at each temperature up to {highest:g}"
            if temperature is None
            else f"a variance of log-probabilities of {by_temperature[temperature]:.2g} at temperature {temperature:g}"
        )
        need = f"at most {_MAX_PROBABILITY}, and a variance of at least {_MIN_VARIANCE}, or no wrong temperature shows"
        do = "initialize the weights so that logits have a standard deviation between 1 and 3"
        raise ConfigError("the first set of `weights`", got=got, need=need, do=do)
    return temperature


def _information(case: Case) -> dict[float, float]:
    """The mean of Var_p(log p) after some prompts, by temperature, without those at which a token is too likely."""
    logps = [case.next_logp(case.request(number).tokens, 1.0) for number in (3, 1, 2, 4)]
    if not all(map(math.isfinite, (value for logp in logps for value in logp))):
        raise ConfigError("`score`", got="a log-probability that is NaN or infinite", need="finite ones")
    results = {}
    for temperature in (each for each in TEMPERATURES if each <= case.max_temperature):
        tempered = [_softmax([value / temperature for value in logp]) for logp in logps]
        if max(max(p) for p in tempered) <= _MAX_PROBABILITY:
            results[temperature] = statistics.mean(map(_variance_of_logp, tempered))
    return results


def _softmax(z: Sequence[float]) -> list[float]:
    weights = [math.exp(value - max(z)) for value in z]
    return [weight / sum(weights) for weight in weights]


def _variance_of_logp(p: Sequence[float]) -> float:
    mean = sum(q * math.log(q) for q in p if q)
    return sum(q * (math.log(q) - mean) ** 2 for q in p if q)


def tokens_are_sampled_at_the_temperature(case: Case) -> None:
    """Tokens are sampled at the temperature of the request. An error of 5 % is detected.

        ratio = p(token; 1.05 T) / p(token; T)

    has the mean 1 if tokens are sampled at T, after each prompt and whatever was sampled before. If they are sampled
    at a higher temperature it is above 1.
    """
    temperature, length = flat_temperature(case), min(case.long, 40)
    count = math.ceil(1.2 * _INFORMATION / _information(case)[temperature] / length)
    excess = []
    prompt = case.request(3).tokens
    for completion in sample(case, temperature, max_tokens=length, count=count):
        higher = case.score(case.weights[0], [*prompt, *completion.tokens], temperature * (1 + _ERROR))
        pairs = zip(higher[len(prompt) :], completion.logp, strict=True)
        excess += [math.expm1(other - own) for other, own in pairs]
    squares = sum(value**2 for value in excess)
    deviations = sum(excess) / math.sqrt(squares)
    estimate = temperature * (1 + _ERROR * sum(excess) / squares)
    limit = -statistics.NormalDist().inv_cdf(MIN_P_VALUE / 2)
    assert abs(deviations) <= limit, (
        f"the temperature at which {len(excess)} tokens were sampled: got about {estimate:.3g}, expected "
        f"{temperature:g}; the difference is {abs(deviations):.3g} standard deviations, expected at most {limit:.2g}"
    )
