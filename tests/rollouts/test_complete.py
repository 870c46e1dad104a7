"""Completions of requests: their order, their text, failed requests, and the callback for progress."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import evolve

from purerl.backends.fake import generator as fake_generator
from purerl.errors import EngineError
from purerl.protocols import Completion, Request, Sampling
from purerl.recipes.addition import character_tokenizer
from purerl.rollouts.complete import complete
from purerl.rollouts.observed import Observed
from purerl.settings import Model

REQUESTS = [Request(f"{k}", (2 + k,), Sampling(1.0, 3, (1,), ()), k) for k in range(10)]


def _generator() -> fake_generator.FakeGenerator:
    """A generator that returns completions in a random order."""
    return fake_generator.build(fake_generator.Config(vocab_size=14), model=Model("fake"), seed=0)


def test_completions_are_in_the_order_of_the_requests_with_their_text() -> None:
    tokenizer = character_tokenizer()
    completed = complete(_generator(), tokenizer, REQUESTS)
    assert [completion.key for completion, _ in completed] == [request.key for request in REQUESTS]
    for completion, text in completed:
        characters = tokenizer.convert_ids_to_tokens(list(completion.tokens))
        assert text == "".join(character for character in characters if character not in ("<eos>", "<pad>"))
    assert any(completion.tokens[-1] == 1 for completion, _ in completed), "end tokens are not part of the text"


class Failing(fake_generator.FakeGenerator):
    """A generator that fails on the request "3"."""

    def collect(self, timeout: float | None = None) -> list[Completion]:
        completions = super().collect(timeout)
        return [evolve(c, finish="error", error="out of memory") if c.key == "3" else c for c in completions]


def test_failed_request_is_an_engine_error() -> None:
    generator = _generator()
    generator.__class__ = Failing
    with pytest.raises(EngineError) as caught:
        complete(generator, character_tokenizer(), REQUESTS)
    assert str(caught.value) == (
        "the generator failed on request '3'\n"
        "  got:  out of memory\n"
        "  do:   see the generator's log; the run can be resumed"
    )


def test_callback_gets_each_completion_once_as_it_finishes() -> None:
    calls: list[Sequence[Completion]] = []
    observed = Observed(_generator(), calls.append)
    completed = complete(observed, character_tokenizer(), REQUESTS)
    assert list(calls[0]) == [], "a call when the requests have been submitted"
    assert max(map(len, calls)) <= 4, "the generator returns a few at a time"
    keys = [completion.key for call in calls for completion in call]
    assert sorted(keys) == [request.key for request in REQUESTS]
    assert [c for c, _ in completed] == [c for c, _ in complete(_generator(), character_tokenizer(), REQUESTS)]
