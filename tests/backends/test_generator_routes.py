"""Experts that the in-process generator records: those of a plain forward pass in float64, for every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from purerl.backends.hf.generator import Config, preview
from purerl.backends.hf.sampling.engine import HFGenerator
from purerl.backends.hf.sampling.expert_recorder import RouteRecorder
from purerl.backends.hf.weights.model_weights import ModelWeights
from purerl.backends.requests import PendingRequest
from purerl.errors import ConfigError
from purerl.expert_routes import LIVE
from purerl.protocols import Completion, Request, Sampling, generate
from purerl.settings import Model
from tests.backends.routed_models import FAMILIES, causal_model, choices_of, in_order
from tests.backends.tiny import write_model

LENGTHS = (5, 9, 3, 7, 9, 5)
"""Maximum tokens of completions. Rows of a table with three slots end at different times, and move."""


def prompts() -> list[list[int]]:
    """Two of them are equal, and one has a single token."""
    return [[3, 4, 5], [3, 4, 5], [7], [6, 2, 8, 4, 9, 3], [5, 5], [4, 3]]


def requests(*, keep: bool = False) -> list[Request]:
    return [
        Request(f"{k}", tokens, Sampling(1.0, length, (), ()), seed=k, keep=keep)
        for k, (tokens, length) in enumerate(zip(prompts(), LENGTHS, strict=True))
    ]


def generator_of(family: str, *, seed: int = 0, **settings: Any) -> HFGenerator:
    config = Config(**{"return_routes": True, "max_num_seqs": 3, "max_prefill_tokens": 12, **settings})
    return HFGenerator(config, causal_model(family, seed=seed), Model("nowhere"))


@cache
def plain(family: str, seed: int = 0) -> Any:
    """A model of its own, which nothing has changed."""
    return causal_model(family, seed=seed)


def choices(family: str, tokens: Sequence[int], *, seed: int = 0) -> np.ndarray:
    return choices_of(plain(family, seed), tokens)


def check_completion(family: str, tokens: Sequence[int], completion: Completion) -> None:
    """The record has all tokens but the last, each with the choices of a plain pass."""
    read = [*tokens, *completion.tokens][:-1]
    assert completion.routes is not None
    assert completion.routes.dtype == np.int16
    np.testing.assert_array_equal(in_order(completion.routes), in_order(choices(family, read)))


# --- laws ----------------------------------------------------------------------------------------------------------


def records_are_the_choices_of_a_plain_pass(family: str = "qwen3_moe") -> None:
    """Of prompts that are read together, of equal prompts, of rows that move, and of sampled tokens."""
    for tokens, completion in zip(prompts(), generate(generator_of(family), requests()), strict=True):
        check_completion(family, tokens, completion)


def records_of_turns_begin_with_the_prompt(family: str = "qwen3_moe", **settings: Any) -> None:
    """The second turn continues keys and values that are kept, with those of other turns beside it."""
    generator = generator_of(family, **settings)
    first = [
        [*tokens, *done.tokens]
        for tokens, done in zip(prompts(), generate(generator, requests(keep=True)), strict=True)
    ]
    second = [[*tokens, 6, k] for k, tokens in enumerate(first)]
    again = [Request(f"again {k}", tokens, Sampling(1.0, 4, (), ()), seed=k) for k, tokens in enumerate(second)]
    for tokens, completion in zip(second, generate(generator, again), strict=True):
        check_completion(family, tokens, completion)


def the_first_record_of_a_token_counts(family: str = "qwen3_moe") -> None:
    """New weights arrive in flight: the record of a token is that of the pass that has sampled the next one."""
    generator = generator_of(family)
    generator.submit(requests())
    completions: list[Completion] = []
    while len(completions) < len(LENGTHS):
        completions += generator.collect(0.0)
        if sum(map(len, (each.tokens for each in completions))) == 0:
            continue
        if generator._version == 0:
            generator.load_weights(ModelWeights(plain(family, 1)), version=1)
    changed = 0
    for completion in completions:
        tokens = [*prompts()[int(completion.key)], *completion.tokens][:-1]
        start = len(tokens) + 1 - len(completion.tokens)
        versions = [*[completion.version[0]] * (start - 1), *completion.version]
        both = [choices(family, tokens, seed=seed) for seed in (0, 1)]
        expected = np.stack([both[version][k] for k, version in enumerate(versions)])
        assert completion.routes is not None
        np.testing.assert_array_equal(in_order(completion.routes), in_order(expected))
        changed += {*versions} == {0, 1}
    assert changed, "a completion has tokens of both versions"


@pytest.mark.parametrize("family", FAMILIES)
def test_records_are_the_choices_of_a_plain_pass(family):
    records_are_the_choices_of_a_plain_pass(family)


@pytest.mark.parametrize("max_cached_tokens", [0, 64, 4096])
def test_records_of_turns_begin_with_the_prompt(max_cached_tokens):
    records_of_turns_begin_with_the_prompt(max_cached_tokens=max_cached_tokens)


def test_the_first_record_of_a_token_counts():
    the_first_record_of_a_token_counts()


# --- mutants -------------------------------------------------------------------------------------------------------


def _of_the_token_before(self: RouteRecorder, table: Any, row: int, first: int) -> np.ndarray:
    return np.roll(READ(self, table, row, first), 1, axis=0)


def _of_another_row(self: RouteRecorder, table: Any, row: int, first: int) -> np.ndarray:
    return READ(self, table, (row + 1) % table.rows, first)


def _of_another_layer(self: RouteRecorder, table: Any, row: int, first: int) -> np.ndarray:
    return np.roll(READ(self, table, row, first), 1, axis=1)


def _without_the_first(self: RouteRecorder, table: Any, row: int, first: int) -> np.ndarray:
    return READ(self, table, row, first + 1)


READ = RouteRecorder.read


@pytest.mark.parametrize("mutant", [_of_the_token_before, _of_another_row, _of_another_layer, _without_the_first])
@pytest.mark.parametrize("law", [records_are_the_choices_of_a_plain_pass, records_of_turns_begin_with_the_prompt])
def test_other_records_are_noticed(monkeypatch, law, mutant):
    monkeypatch.setattr(RouteRecorder, "read", mutant)
    with pytest.raises(AssertionError):
        law()


def test_the_last_record_of_a_token_is_noticed(monkeypatch):
    def replace(self: PendingRequest, routes: np.ndarray) -> None:
        self.routes = routes

    monkeypatch.setattr(PendingRequest, "add_routes", replace)
    with pytest.raises(AssertionError):
        the_first_record_of_a_token_counts()


def test_a_cache_without_the_plane_is_noticed(monkeypatch):
    store: Callable = RouteRecorder.store

    def only_new(self: RouteRecorder, cache: Any, *, rows: int) -> None:
        kept = getattr(cache, "kept", None)
        if kept is not None:
            cache.kept = lambda name: kept(name).zero_()
        store(self, cache, rows=rows)

    monkeypatch.setattr(RouteRecorder, "store", only_new)
    with pytest.raises(AssertionError):
        records_of_turns_begin_with_the_prompt()


# --- settings ------------------------------------------------------------------------------------------------------


def test_without_the_setting_nothing_is_recorded_and_no_token_changes():
    recorded, plain_generator = generator_of("qwen3_moe"), generator_of("qwen3_moe", return_routes=False)
    assert recorded.capabilities.routes
    assert not plain_generator.capabilities.routes
    expected, found = generate(recorded, requests()), generate(plain_generator, requests())
    assert all(completion.routes is None for completion in found)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    assert [c.logp for c in found] == [c.logp for c in expected]


def test_a_request_that_is_cancelled_before_it_is_read_has_no_record():
    generator = generator_of("qwen3_moe")
    generator.submit(requests()[:1])
    generator.cancel(["0"])
    [completion] = generator.collect()
    assert completion.finish == "cancelled"
    assert completion.routes is None


def test_a_single_token_is_read_by_the_first_step():
    generator = generator_of("qwen3_moe")
    request = Request("0", [7], Sampling(1.0, 2, (), ()), seed=0)
    [completion] = generate(generator, [request])
    assert completion.routes is not None
    assert len(completion.routes) == 2
    assert (completion.routes != LIVE).all()


def test_a_model_without_experts_is_refused(tmp_path):
    path = write_model(tmp_path, "qwen3")
    with pytest.raises(ConfigError) as error:
        preview(Config(return_routes=True), model=Model(path))
    assert str(error.value).splitlines()[:2] == ["generator.return_routes", "  got:  Qwen3Model: no experts"]
