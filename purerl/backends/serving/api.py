"""The differences between engines: starting them, requests, and new weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from purerl.backends.requests import PendingRequest
from purerl.backends.serving.http import Http
from purerl.backends.serving.weights import WeightFiles, WeightStream

__all__ = ["Answer", "Call", "Command", "EngineApi", "checked_routes"]


class Command(NamedTuple):
    """The command that starts a server: its program with arguments, and variables that are added to the environment."""

    arguments: Sequence[str]
    environment: Mapping[str, str]


class Call(NamedTuple):
    """A POST request: the path, and the body as JSON."""

    path: str
    body: dict[str, Any]


class Answer(NamedTuple):
    """New tokens of a request. `versions` has (the engine's name of a version, number of tokens), in order.

    finish  "interrupted": by an abort, which somebody has asked for, or by new weights
    routes  [n, layers, k] the experts of the first n tokens that the server has read; None: it has not returned any
    """

    tokens: Sequence[int]
    logp: Sequence[float]
    versions: Sequence[tuple[str, int]]
    finish: Literal["stop", "length", "interrupted"]
    routes: np.ndarray | None = None


def checked_routes(answer: Answer, pending: PendingRequest) -> Answer:
    """`answer`, which must have the experts of all tokens but the last, unless it was interrupted.

    Raises: ValueError.
    """
    needed = len(pending.all_tokens) + len(answer.tokens) - 1
    got = 0 if answer.routes is None else len(answer.routes)
    if got > needed or (got < needed and answer.finish != "interrupted"):
        raise ValueError(f"the experts of {got} tokens in place of {needed}")
    return answer


class EngineApi(Protocol):
    """An engine's HTTP interface. The methods that compute have no state; the others raise what `Http` raises."""

    @property
    def name(self) -> str:
        """The engine, for messages."""
        ...

    def keeps_requests(self, *, is_adapter: bool) -> bool:
        """Whether requests may be in flight while weights are loaded. Otherwise they are aborted, and sent again."""
        ...

    def command(self, host: str, port: int) -> Command:
        """The command that starts a server that listens on `port` of `host`, an address of this computer."""
        ...

    def request(self, pending: PendingRequest, identity: str, adapter: str | None) -> Call:
        """The call that continues `pending` after the tokens that it has; `identity` is a name for `abort`.

        `adapter` is the name of the adapter that the server has loaded (`WeightFiles.name`), if it has loaded one.
        """
        ...

    def answer(self, response: Any, pending: PendingRequest) -> Answer:
        """The answer in the response to a call that continues `pending`.

        Raises: ValueError if it says something else; RefusedError if the server has read another prompt.
        """
        ...

    async def check(self, http: Http, *, timeout: float) -> str | None:
        """The problem of a server that is ready, such as another model; None if it can be used."""
        ...

    async def abort(self, http: Http, identity: str, *, timeout: float) -> None:
        """End the request `identity` soon; its answer has the tokens so far. An unknown one is no error."""
        ...

    async def processes(self, http: Http, *, timeout: float) -> int:
        """The number of processes of the server that hold a part of the model, and receive weights."""
        ...

    async def update(self, http: Http, weights: WeightFiles | WeightStream, *, timeout: float) -> None:
        """Load weights. Nothing that was computed with the old ones is used afterwards, unless settings allow it."""
        ...

    async def sleep(self, http: Http, *, level: int, timeout: float) -> None:
        """Release the memory of the devices, as `ServerSettings.sleep_level` says. No request is in flight."""
        ...

    async def wake(self, http: Http, part: Literal["weights", "kv_cache"], *, timeout: float) -> None:
        """Allocate the memory of `part` again: first "weights", and "kv_cache" after the weights are loaded."""
        ...
