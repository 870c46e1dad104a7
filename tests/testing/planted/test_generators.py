"""The fake generator passes the conformance suite, and each planted error is reported by the check that names it."""

from __future__ import annotations

import re

import pytest
import torch
from attrs import evolve

from purerl.backends.fake import engine as fake
from purerl.backends.fake.engine import FakeGenerator
from purerl.backends.requests import PendingRequest
from purerl.errors import ConfigError
from purerl.testing import generator as suite
from purerl.testing.generator import check_generator
from tests.backends.generators import FAKE, fake_generator, fake_weights
from tests.testing.planted.generators import rounded_by_batch
from tests.testing.planted.lists import GENERATORS


def test_fake_generator_conforms_with_every_check_and_gets_lists_and_tuples(monkeypatch):
    kinds, submit = set(), FakeGenerator.submit

    def recorded(self, requests):
        kinds.update({("requests", type(requests)), *(("prompt", type(request.tokens)) for request in requests)})
        submit(self, requests)

    monkeypatch.setattr(FakeGenerator, "submit", recorded)
    result, regex = check_generator(fake_generator, **FAKE), suite.parameters.completion_matches_regex
    assert result.passed == tuple(
        check.__name__ for check in (*suite.ALWAYS, *suite.SAMPLING, *suite.REFUSED, *suite.EXACT) if check is not regex
    )
    assert result.left_out == {regex.__name__: "regex in capabilities.sampling not stated"}
    assert kinds == {(name, kind) for name in ("requests", "prompt") for kind in (list, tuple)}


def test_generator_is_closed_if_a_check_fails(monkeypatch):
    closed = []

    def close(self: FakeGenerator) -> None:
        closed.append(self)

    monkeypatch.setattr(FakeGenerator, "close", close)
    monkeypatch.setattr(FakeGenerator, "collect", lambda self, timeout=None: [None])
    with pytest.raises(AssertionError, match="^collect_without_requests"):
        check_generator(fake_generator, **FAKE)
    assert len(closed) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function", "capabilities", "check"),
    [
        ("uniform", lambda seed, index: torch.rand(len(seed)), {"seeded": False}, "seed_determines_tokens"),
        ("choose", rounded_by_batch, {"batch_invariant": False}, "concurrent_requests_do_not_change_results"),
    ],
)
def test_capability_that_is_not_stated_is_not_tested(monkeypatch, name, function, capabilities, check):
    monkeypatch.setattr(fake, name, function)
    with pytest.raises(AssertionError, match=f"^{check}: "):
        check_generator(fake_generator, **FAKE)

    def build() -> FakeGenerator:
        generator = fake_generator()
        generator.capabilities = evolve(generator.capabilities, **capabilities)
        return generator

    result = check_generator(build, **FAKE)
    assert result.left_out[check] == f"capabilities.{next(iter(capabilities))} not stated"
    assert {*result.left_out} <= {check.__name__ for check in (*suite.SAMPLING, *suite.EXACT)}


def test_checks_that_need_seeds_are_left_out_without_them():
    def build() -> FakeGenerator:
        generator = fake_generator()
        generator.capabilities = evolve(generator.capabilities, seeded=False, batch_invariant=False)
        return generator

    both = "capabilities.seeded and capabilities.batch_invariant not stated"
    left_out = check_generator(
        build, **FAKE | {"text": None, "logits": None, "samples": 400}, exempt=["polling_makes_progress"]
    ).left_out
    assert left_out == {
        "seed_determines_tokens": "capabilities.seeded not stated",
        "concurrent_requests_do_not_change_results": "capabilities.batch_invariant not stated",
        "canceled_completions_begin_whole_completions": both,
        "next_turns_equal_requests_of_their_own": both,
        "stop_strings_end_completion": "no argument `text`",
        "completion_matches_regex": "no argument `text`",
        "sampling_parameters_change_probabilities": "no argument `logits`",
        "polling_makes_progress": "exempt",
    }


# --- planted errors ----------------------------------------------------------------------------------------------


def message_of(name, monkeypatch, checks=None) -> str:
    """The message about the planted error `name`, if only `checks` run, or only the one that has to detect it."""
    error = GENERATORS[name]
    error.apply(monkeypatch)
    monkeypatch.setattr(suite, "_TIMEOUT", 0.2 if error.check is suite.requests.polling_makes_progress else 60.0)
    for group, own in {"ALWAYS": checks or (error.check,), "SAMPLING": {}, "REFUSED": (), "EXACT": {}}.items():
        monkeypatch.setattr(suite, group, own)
    with pytest.raises(AssertionError) as caught:
        check_generator(fake_generator, **FAKE)
    return str(caught.value)


@pytest.mark.parametrize("name", GENERATORS)
def test_check_detects_planted_error(name, monkeypatch):
    message, error = message_of(name, monkeypatch), GENERATORS[name]
    assert message.startswith(f"{error.check.__name__}: ")
    assert error.words in message
    assert "\n  rule: " in message


CHECKS = (*suite.ALWAYS, *suite.SAMPLING, *suite.REFUSED, *suite.EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_whole_suite_reports_planted_error_by_its_name(name, monkeypatch):
    """No check before it fails: of several failures, the first one is the cause."""
    check = GENERATORS[name].check
    stated = [each for each in CHECKS if each is not suite.parameters.completion_matches_regex or each is check]
    before = (*stated[: stated.index(check)], check)
    assert message_of(name, monkeypatch, before).startswith(f"{GENERATORS[name].check.__name__}: ")


def test_every_check_has_a_planted_error():
    assert {error.check for error in GENERATORS.values()} == {*CHECKS}


@pytest.mark.parametrize(("factor", "words"), [(30.0, "a token with a probability above 0.5"), (0.0, "a variance of")])
def test_weights_that_do_not_show_a_wrong_temperature_are_refused(factor, words):
    weights = [{name: factor * value for name, value in fake_weights(seed).items()} for seed in (0, 1)]
    with pytest.raises(ConfigError, match=words):
        check_generator(fake_generator, **FAKE | {"weights": weights})


def test_score_that_is_not_a_number_is_refused():
    with pytest.raises(ConfigError, match="`score`\n  got:  a log-probability that is NaN"):
        check_generator(fake_generator, **FAKE | {"score": lambda weights, tokens, temperature: [float("nan")]})


# --- messages, exemptions and kinds of sequences -------------------------------------------------------------------


@pytest.mark.slow
def test_a_generator_may_return_lists_and_tuples(monkeypatch):
    completion, collect = PendingRequest.completion, FakeGenerator.collect

    def with_lists(self, finish):
        full = completion(self, finish)
        return evolve(full, tokens=list(full.tokens), logp=list(full.logp), version=list(full.version))

    monkeypatch.setattr(PendingRequest, "completion", with_lists)
    monkeypatch.setattr(FakeGenerator, "collect", lambda self, timeout=None: tuple(collect(self, timeout)))
    check_generator(fake_generator, **FAKE | {"samples": 400})


DIFFERENCE = r"(the first difference at new token \d+|the number of tokens): got \d+, expected \d+"
REQUEST = r"request '{key}', seed \d+, temperature \S+, max_tokens \d+,( stop \S+,)* prompt \["


@pytest.mark.parametrize(
    ("name", "actual", "expected", "key"),
    [
        ("seed_is_ignored", "repeated", "first", "0"),
        ("row_index_is_added_to_the_seed", "in a batch in reverse order", "in a batch of 24", r"request \d+"),
        ("long_prompts_are_truncated", "continued after 4 tokens", "in one completion", r"request \d"),
        ("canceled_requests_are_sampled_again", "canceled", "not canceled", r"request \d+"),
    ],
)
def test_two_requests_that_differ_are_named(name, actual, expected, key, monkeypatch):
    message, request = message_of(name, monkeypatch), REQUEST.replace("{key}", key)
    assert re.match(rf"^{GENERATORS[name].check.__name__}: {DIFFERENCE}\n  got:      \(", message)
    assert re.search(rf"\n            {actual}: {request}.*\n  expected: \(", message)
    assert re.search(rf"\n            {expected}: {request}", message)


def test_two_requests_with_the_same_tokens_are_named(monkeypatch):
    message = message_of("seed_is_truncated_to_32_bits", monkeypatch)
    assert re.search(r"the 12 tokens of two requests with different seeds: got .*\n  request '0', seed 0,", message)
    assert f"request '{2**40}', seed {2**40}, " in message


@pytest.mark.slow
def test_exempt_checks_are_not_run(monkeypatch):
    monkeypatch.setattr(fake, "choose", rounded_by_batch)
    exempt = ["concurrent_requests_do_not_change_results", "canceled_completions_begin_whole_completions"]
    with pytest.raises(AssertionError, match=f"^{exempt[0]}: "):
        check_generator(fake_generator, **FAKE, exempt=exempt[1:])
    check_generator(fake_generator, **FAKE, exempt=exempt)


def test_unknown_exemption_is_refused_before_the_generator_is_made():
    with pytest.raises(
        ConfigError, match=r"an exemption\n  got:  'seed_determines_token'\n.*\n.*'seed_determines_tokens'"
    ):
        check_generator(lambda: pytest.fail("made"), **FAKE, exempt=["seed_determines_token"])
