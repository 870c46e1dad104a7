"""The fake generator passes the conformance suite, and each check of the suite detects its mutants."""

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
from tests.backends.broken import generators, parameters, turns
from tests.backends.broken.generators import rounded_by_batch
from tests.backends.generators import FAKE, fake_generator

MUTANTS = generators.MUTANTS | turns.MUTANTS | parameters.MUTANTS


def test_fake_generator_conforms_with_every_check_and_gets_lists_and_tuples(monkeypatch):
    kinds, submit = set(), FakeGenerator.submit

    def recorded(self, requests):
        kinds.update({("requests", type(requests)), *(("prompt", type(request.tokens)) for request in requests)})
        submit(self, requests)

    monkeypatch.setattr(FakeGenerator, "submit", recorded)
    result, regex = check_generator(fake_generator, **FAKE), suite.parameters.completion_matches_regex
    assert result.passed == tuple(
        check.__name__ for check in (*suite.ALWAYS, *suite.SAMPLING, *suite.EXACT) if check is not regex
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


# --- mutants -----------------------------------------------------------------------------------------------------


def message_of(name, monkeypatch) -> str:
    """The message of the check that detects the mutant `name`; no other check runs."""
    mutant = MUTANTS[name]
    mutant.apply(monkeypatch)
    for group, checks in {"ALWAYS": (mutant.check,), "SAMPLING": {}, "EXACT": {}}.items():
        monkeypatch.setattr(suite, group, checks)
    with pytest.raises(AssertionError) as caught:
        check_generator(fake_generator, **FAKE)
    return str(caught.value)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_detected(name, monkeypatch):
    monkeypatch.setattr(suite, "_TIMEOUT", 0.2)
    assert message_of(name, monkeypatch).startswith(f"{MUTANTS[name].check.__name__}: ")


def test_every_check_has_a_mutant():
    assert {mutant.check for mutant in MUTANTS.values()} == {*suite.ALWAYS, *suite.SAMPLING, *suite.EXACT}


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
        ("seed_is_the_row_index", "in a batch in reverse order", "in a batch of 24", r"request \d+"),
        ("last_prompt_token_is_dropped", "continued after 4 tokens", "in one completion", r"request \d"),
        ("random_numbers_depend_on_the_number_of_rows", "canceled", "not canceled", r"request \d+"),
    ],
)
def test_two_requests_that_differ_are_named(name, actual, expected, key, monkeypatch):
    message, request = message_of(name, monkeypatch), REQUEST.replace("{key}", key)
    assert re.match(rf"^{MUTANTS[name].check.__name__}: {DIFFERENCE}\n  got:      \(", message)
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
