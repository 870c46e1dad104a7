"""Environments on other machines, which `purerl.envs.server` serves over HTTP; the protocol is described there.

Every request may be sent again: the client chooses the name of an episode and numbers its turns, and the server answers
a request that it has answered already with the same answer. So a connection that breaks costs nothing.

The token is sent to the server only, see `purerl.system.bounded_http`, which also limits what a server may answer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import evolve

from purerl.envs.episode import Episode, Tools
from purerl.envs.failures import EnvironmentFailure, died, timed_out
from purerl.envs.observations import Declared, checked_observation, checked_tools, example_as_json, from_json
from purerl.envs.protocol import EndReason, Observation, ToolCall
from purerl.errors import RolloutError
from purerl.rewards.outcomes import Failure
from purerl.system.access_tokens import client_token
from purerl.system.bounded_http import Answer, AnswerError, BoundedClient, OverdueError, UnreachableError

__all__ = ["VARIABLE", "RemoteHost"]

VARIABLE = "PURERL_ENVIRONMENT_TOKEN"
"""The environment variable with the token of servers of environments."""
_MAX_CONNECTIONS = 64
_ATTEMPTS, _SECONDS_BETWEEN_ATTEMPTS = 3, 0.5
_TEMPORARY, _UNKNOWN_PATH, _REFUSED = (502, 503, 504), (404, 405, 501), (401, 403)


class RemoteHost:
    """Environments that a server has. `timeout` is that of a request in seconds, with all that it waits and repeats."""

    def __init__(self, url: str, *, timeout: float, declared: Declared):
        self.url, self._timeout, self._declared = url.rstrip("/"), timeout, declared
        self._token = client_token(VARIABLE, url)
        self._client = BoundedClient(url, connections=_MAX_CONNECTIONS)
        self._connections = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def open(self) -> Episode:
        """An episode. The server hears of it with `reset`."""
        return _RemoteEpisode(self, uuid.uuid4().hex, self._declared)

    async def close(self) -> None:
        await self._client.close()

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, is_optional: bool = False
    ) -> Mapping[str, Any]:
        """The answer to a request, which is sent again if the connection breaks.

        is_optional  the answer is empty if the server does not know the path

        Raises: EnvironmentFailure if there is no valid answer; RolloutError if the server refuses the token.
        """
        try:
            async with self._connections, asyncio.timeout(self._timeout):
                answer = await self._request(method, path, body)
        except (TimeoutError, OverdueError) as error:
            raise timed_out(self.url, self._timeout, f"{method} {path}\n") from error
        except UnreachableError as error:
            raise died(self.url, [f"{method} {path} failed {_ATTEMPTS} times", *error.attempts]) from error
        except AnswerError as error:
            raise _invalid(self.url, f"answered {method} {path} with {error}") from error
        if is_optional and answer.status in _UNKNOWN_PATH and "no such episode" not in answer.text:
            return {}
        return self._read(answer, f"{method} {path}")

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        answer = await self._ask(method, path, body)
        if answer.status in _REFUSED and (token := client_token(VARIABLE, self.url)) != self._token:
            self._token = token  # a server that was started again has made another one
            answer = await self._ask(method, path, body)
        if answer.status not in _REFUSED:
            return answer
        got = "no token" if self._token is None else "a token that is not that of the server"
        do = f"export {VARIABLE}=..., or {VARIABLE}_FILE with the name of a file of mode 0600, as for the server"
        raise RolloutError(f"{self.url} refuses the run", got=got, need="the token of the server", do=do)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        options = {"attempts": _ATTEMPTS, "pause": _SECONDS_BETWEEN_ATTEMPTS, "busy": _TEMPORARY}
        return await self._client.repeat(method, path, body, headers=headers, deadline=self._timeout, **options)

    def _read(self, answer: Answer, request: str) -> Mapping[str, Any]:
        if answer.status == 204:
            return {}
        try:
            body, why = answer.json(), ""
        except AnswerError as error:
            body, why = None, f", {error}"
        if answer.status in (200, 201) and isinstance(body, Mapping):
            return body
        if isinstance(body, Mapping) and isinstance(body.get("failure"), Mapping):
            raise EnvironmentFailure(_failure(body["failure"], self.url))
        text = answer.text if self._token is None else answer.text.replace(self._token, "[token]")
        raise _invalid(self.url, f"answered {request} with status {answer.status}{why}: {text[:500]}")


def _invalid(url: str, text: str) -> EnvironmentFailure:
    return EnvironmentFailure(Failure(url, "returned an invalid value", f"{text}\n"))


def _failure(body: Mapping[str, Any], url: str) -> Failure:
    try:
        if all(isinstance(value, str) for value in body.values()):
            return Failure(**body)
    except TypeError:
        pass  # it has other fields
    return Failure(url, "returned an invalid value", f"answered with the failure {body!r:.500}\n")


class _RemoteEpisode:
    def __init__(self, host: RemoteHost, name: str, declared: Declared):
        self._host, self._name, self._declared = host, name, declared
        self._turn, self._is_started = 0, False
        self.tools: Tools = None

    async def reset(self, example: Mapping[str, Any], seed: int) -> Observation:
        self._is_started = True
        body = {"episode": self._name, "example": example_as_json(example), "seed": seed}
        return self._observation(await self._host.send("POST", "/episodes", body))

    async def step(self, text: str, calls: Sequence[ToolCall]) -> Observation:
        body = {"turn": self._turn, "text": text, "calls": [attrs.asdict(call) for call in calls]}
        self._turn += 1
        return self._observation(await self._host.send("POST", f"/episodes/{self._name}/step", body))

    async def end(self, reason: EndReason, text: str) -> Observation | None:
        body = {"turn": self._turn, "reason": reason, "text": text}
        answer = await self._host.send("POST", f"/episodes/{self._name}/end", body, is_optional=True)
        if answer.get("observation") is None:
            return None
        self._declared = evolve(self._declared, has_states=False)
        return self._observation(answer)

    async def close(self) -> None:
        if self._is_started:
            self._is_started = False
            try:
                await self._host.send("DELETE", f"/episodes/{self._name}")
            except (EnvironmentFailure, RolloutError):
                return  # a server that has ended has no episodes; one that lives closes what is not used

    def _observation(self, body: Mapping[str, Any]) -> Observation:
        try:
            self.tools = checked_tools(body.get("tools"))
            return checked_observation(from_json(body.get("observation")), self._declared)
        except (ValueError, TypeError) as error:
            raise EnvironmentFailure(Failure(self._host.url, "returned an invalid value", f"{error}\n")) from error
