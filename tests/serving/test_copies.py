"""Generators with several copies of the weights: each copy can be asked, and has weights at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from purerl.backends.copies import SupportsCopies, copies_of, generate_on_copies
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.shared import SharedGenerator
from purerl.errors import InputError
from purerl.placement.actors.generator import RemoteGenerator
from purerl.placement.actors.group import ActorGroup
from purerl.placement.actors.host import Built
from purerl.protocols import Capabilities, Completion, Request
from purerl.ranks import Ranks
from tests.serving.toys import WEIGHTS, completions, requests, sampled_by, toys


def test_each_server_can_be_asked(tmp_path: Path) -> None:
    with toys(tmp_path, number=3) as generator:
        assert isinstance(generator, SupportsCopies)
        assert copies_of(generator) == [f"the toy server at {server.url}" for server in generator.servers]
        asked = requests(7)
        parts = [asked[:1], asked[1:5], asked[5:]]
        found = generate_on_copies(generator, parts)
        assert [[each.key for each in own] for own in found] == [[each.key for each in own] for own in parts]
        assert [sampled_by(server) for server in generator.servers] == [4, 16, 8]


def test_a_request_to_a_copy_is_checked_as_any_other(tmp_path: Path) -> None:
    with toys(tmp_path) as generator, pytest.raises(InputError):
        generator.submit_to(0, [Request("0", [], requests(1)[0].sampling, seed=0)])


def test_all_of_many_servers_load_weights_at_the_same_time(tmp_path: Path) -> None:
    """Each needs two threads of this process at once: a sender, and the receiver that stands for the engine."""
    with toys(tmp_path, number=8, update_timeout=60.0) as generator:
        generator.load_weights(WEIGHTS, version=3)
        generator.submit(requests(8))
        assert {completion.version for completion in completions(generator, 8).values()} == {(3,) * 4}
        assert [server.restarts for server in generator.servers] == [0] * 8


# --- ranks ---------------------------------------------------------------------------------------------------------


class Local:
    """Stands for the `ServedGenerator` of a rank."""

    capabilities = Capabilities()

    def __init__(self, number: int) -> None:
        self.servers = [SimpleNamespace(name=f"server {k}") for k in range(number)]
        self.asked: list[int] = []

    def announce(self) -> None: ...

    def submit_to(self, copy: int, requests: list[Request]) -> None:
        self.asked.append(copy)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("servers", [1, 2, 3, 5, 8])
def test_ranks_divide_the_servers_that_they_share(servers: int, ranks: int) -> None:
    """Each server is asked, each rank asks one, and none asks more than its share."""
    asked = []
    for rank in range(ranks):
        local = Local(servers)
        generator = SharedGenerator(cast(ServedGenerator, local), Ranks(rank, ranks))
        names = generator.copies()
        for copy in range(len(names)):
            generator.submit_to(copy, [])
        assert names == [f"server {k}" for k in local.asked]
        assert 1 <= len(names) <= -(-servers // ranks)
        asked += names
    assert {*asked} == {f"server {k}" for k in range(servers)}


# --- actors --------------------------------------------------------------------------------------------------------


class Part:
    """Stands for the group of one actor."""

    def __init__(self, first: int) -> None:
        self.first, self.calls = first, list[tuple[Any, ...]]()

    def call(self, *arguments: Any) -> list[None]:
        self.calls.append(arguments)
        return [None]


def test_copies_of_actors_are_those_of_their_engines() -> None:
    """The engine of the second actor has two servers."""
    parts = [Part(first) for first in range(3)]
    group = SimpleNamespace(name="generator", parts=lambda: parts)
    built = [
        Built(Capabilities(), frozenset({"submit_to"} if len(copies) > 1 else ()), copies)
        for copies in ([""], ["server A", "server B"], [""])
    ]
    generator = RemoteGenerator(cast(ActorGroup, group), "generator", built, lambda: None)
    assert generator.copies() == ["generator-0", "server A in generator-1", "server B in generator-1", "generator-2"]
    asked = requests(4)
    for copy, request in enumerate(asked):
        generator.submit_to(copy, [request])
    calls: Mapping[int, list[tuple[Any, ...]]] = {part.first: part.calls for part in parts}
    assert calls[0] == [("call_each", "generator", "submit", None, [asked[0]])]
    assert calls[1] == [("call_each", "generator", "submit_to", None, own, [asked[1 + own]]) for own in (0, 1)]
    assert calls[2] == [("call_each", "generator", "submit", None, [asked[3]])]
    with pytest.raises(InputError):
        generator.submit_to(0, [asked[3]])


def test_a_generator_without_copies_has_one() -> None:
    class One:
        capabilities = Capabilities()

        def __init__(self) -> None:
            self.requests: list[Request] = []

        def submit(self, requests: list[Request]) -> None:
            self.requests += requests

        def collect(self, timeout: float | None = None) -> list[Completion]:
            taken, self.requests = self.requests, []
            return [Completion(each.key, [1], [-1.0], [0], "length") for each in reversed(taken)]

    one: Any = One()
    assert copies_of(one) == [""]
    [found] = generate_on_copies(one, [requests(3)])
    assert [each.key for each in found] == ["0", "1", "2"]
