"""A generator in actors, as a `Generator` of the driver: each actor has an engine of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import evolve

from purerl.backends.requests import check_keys
from purerl.errors import InputError
from purerl.images import ImageStore
from purerl.placement.actors.group import ActorGroup
from purerl.placement.actors.host import Built
from purerl.placement.actors.package import load_ray
from purerl.placement.actors.weights import load_weights
from purerl.protocols import Completion, Generator, Request, Weights

__all__ = ["RemoteGenerator", "build_generator"]

_MAX_COLLECT = 1.0  # seconds that an actor waits for a completion before it looks for new requests


class RemoteGenerator:
    """The generator `name` in the actors of `group`.

    Requests with the same prompt go to one actor, and so do the requests that continue a sequence that it keeps. Others
    go to the actor with the fewest requests in flight.
    """

    def __init__(self, group: ActorGroup, name: str, built: Sequence[Built], on_close: Callable[[], object]) -> None:
        self.group, self.name, self._parts, self._on_close = group, name, group.parts(), on_close
        self.capabilities = evolve(built[0].capabilities, in_process=False)
        self._built = built
        self._actor_of: dict[str, int] = {}  # by the key of a request in flight
        self._kept: dict[str, tuple[tuple[int, ...], int]] = {}  # the content and the actor of requests with `keep`
        self._calls: dict[int, Any] = {}  # the call of `collect` that each actor is in
        self._finished: list[Completion] = []
        if "use_images" in built[0].methods:
            self.use_images = self._use_images

    def submit(self, requests: Sequence[Request]) -> None:
        check_keys(requests, self._actor_of)
        self._settle()
        load, chosen = Counter(self._actor_of.values()), dict[tuple[int, ...], int]()
        parts: dict[int, list[Request]] = {}
        for request in requests:
            content = tuple(request.content)
            if content not in chosen:
                chosen[content] = self._keeper(content, min(range(len(self._parts)), key=lambda k: load[k]))
            actor = chosen[content]
            load[actor] += 1
            parts.setdefault(actor, []).append(request)
        errors = self._call_parts("submit", parts)
        if errors:
            self._retract({actor: part for actor, part in parts.items() if actor not in errors})
            raise min(errors.items())[1]
        for actor, part in parts.items():
            self._accept(actor, part)

    def _accept(self, actor: int, requests: Sequence[Request]) -> None:
        self._actor_of.update((request.key, actor) for request in requests)
        self._kept.update((request.key, (tuple(request.content), actor)) for request in requests if request.keep)

    def copies(self) -> list[str]:
        actors = zip([f"{self.group.name}-{part.first}" for part in self._parts], self._built, strict=True)
        return [f"{copy} in {name}" if copy else name for name, built in actors for copy in built.copies]

    def submit_to(self, copy: int, requests: Sequence[Request]) -> None:
        check_keys(requests, self._actor_of)
        self._settle()
        places = [(actor, own) for actor, built in enumerate(self._built) for own in range(len(built.copies))]
        actor, own = places[copy]
        if "submit_to" in self._built[actor].methods:
            self._parts[actor].call("call_each", self.name, "submit_to", None, own, requests)
        else:
            self._parts[actor].call("call_each", self.name, "submit", None, requests)
        self._accept(actor, requests)

    def _retract(self, parts: dict[int, list[Request]]) -> None:
        """Let the actors that have accepted these requests forget them, because another actor has refused its part."""
        for actor, part in parts.items():
            keys, group = {request.key for request in part}, self._parts[actor]
            group.call("call_each", self.name, "cancel", None, [*keys])
            while keys:
                completions = group.call("call_each", self.name, "collect", None, _MAX_COLLECT)[0]
                self._finish([completion for completion in completions if completion.key not in keys])
                keys.difference_update(completion.key for completion in completions)

    def _keeper(self, content: tuple[int, ...], otherwise: int) -> int:
        """The actor that keeps the longest beginning of `content`."""
        kept = [(len(known), actor) for known, actor in self._kept.values() if content[: len(known)] == known]
        return max(kept)[1] if kept else otherwise

    def _call_parts(self, method: str, parts: dict[int, Any]) -> dict[int, InputError]:
        """Call `method` of the engine of each actor with its part; return by which actors it is refused, and why."""
        calls = {k: self._parts[k].start("call_each", self.name, method, None, part) for k, part in parts.items()}
        errors = {}
        for actor, references in calls.items():
            try:
                self._parts[actor].results(references, f"{self.name}.{method}")
            except InputError as error:
                errors[actor] = error
        return errors

    def collect(self, timeout: float | None = None) -> list[Completion]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._finished and self._actor_of:
            remaining = _MAX_COLLECT if deadline is None else min(_MAX_COLLECT, deadline - time.monotonic())
            self._collect(max(0.0, remaining))
            if deadline is not None and time.monotonic() >= deadline:
                break
        finished, self._finished = self._finished, []
        return finished

    def _collect(self, timeout: float) -> None:
        """Let each actor with requests collect, and take what one of them has within `timeout`."""
        ray = load_ray()
        for actor in {*self._actor_of.values()} - self._calls.keys():
            (self._calls[actor],) = self._parts[actor].start("call_each", self.name, "collect", None, timeout)
        ready, _ = ray.wait([*self._calls.values()], num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait([*self._calls.values()], num_returns=len(self._calls), timeout=0)
        self._take(actor for actor, call in [*self._calls.items()] if call in ready)

    def _take(self, actors: Iterable[int]) -> None:
        for actor in actors:
            completions = self._parts[actor].results([self._calls.pop(actor)], f"{self.name}.collect")[0]
            self._finish(completions)

    def _finish(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            del self._actor_of[completion.key]
        self._finished += completions

    def _settle(self) -> None:
        self._take([*self._calls])

    def cancel(self, keys: Sequence[str]) -> None:
        self._settle()
        kept = {key: actor for key, (_, actor) in self._kept.items()}
        parts: dict[int, list[str]] = {}
        for key in keys:
            if (actor := self._actor_of.get(key, kept.get(key))) is not None:
                parts.setdefault(actor, []).append(key)
                self._kept.pop(key, None)
        self._call_parts("cancel", parts)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self._settle()
        self._kept.clear()
        load_weights(weights, self.group, self.name, version=version)

    def sleep(self) -> None:
        self._settle()
        self.group.call_engine(self.name, "sleep", None)

    def _use_images(self, images: ImageStore) -> None:
        self.group.call_engine(self.name, "use_images", None, images)

    def close(self) -> None:
        for part in self._parts:
            part.close(self.name)
        self._on_close()


def build_generator(
    group: ActorGroup, name: str, build: Callable[[], Generator], on_close: Callable[[], object]
) -> RemoteGenerator:
    """The generator whose engines `build` returns in the actors of `group`, all at the same time.

    `on_close` ends the group.
    """
    try:
        built = group.call("build", name, build)
    except BaseException:
        on_close()
        raise
    return RemoteGenerator(group, name, built, on_close)
