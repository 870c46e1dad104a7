"""A server that hosts environments over HTTP, so that they can run on other machines.

    from purerl.envs.server import serve

    serve("game.py:Game", host="0.0.0.0", port=8700)        # on the other machine
    environment = {url = "http://other-machine:8700"}       # in the configuration of the run

Every request has the header ``Authorization: Bearer TOKEN``. The token is in the environment variable
PURERL_ENVIRONMENT_TOKEN of the server and of the run, or in a private file that PURERL_ENVIRONMENT_TOKEN_FILE names. A
server on a loopback address that has neither writes a random token into a file, which runs of the same user read.

Bodies are JSON. An observation is an object with the fields of `purerl.envs.protocol.Observation` that are not the
default, and a call is one with the fields of `ToolCall`. The images of an observation are base64; bytes in an example,
such as those of an image, are a data URL.

    GET    /                    {"environment": NAME, "episodes": NUMBER}
    POST   /episodes            {"episode": ID, "example": {...}, "seed": S}    the client chooses ID
                                201 {"observation": {...}, "tools": [...] or null}
    POST   /episodes/ID/step    {"turn": T, "text": "...", "calls": [{...}, ...]}     T = 0, 1, ...
                                200 {"observation": {...}, "tools": [...] or null}
    POST   /episodes/ID/end     {"turn": T, "reason": "turns", "tokens" or "length", "text": "..."}
                                200 {"observation": {...} or null, "tools": [...] or null}
    DELETE /episodes/ID         204

    400 {"error": TEXT}         the request is invalid
    401 {"error": TEXT}         the token is missing or wrong
    404 {"error": TEXT}         there is no such episode, or no such path
    409 {"error": TEXT}         the turn is not the next one
    422 {"failure": {"function": NAME, "kind": KIND, "traceback": TEXT}}    the environment has failed

A server without the path `end` serves environments that have no such method. A request that was answered is answered in
the same way if it is repeated, so a client may repeat every request. The code runs in worker processes with deadlines.
An episode that gets no request for `max_idle` seconds is closed. Requests and their token are not encrypted: serve in a
network that you trust, or behind a proxy with https://.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, get_args

import attrs

from purerl.envs.episode import Episode
from purerl.envs.failures import EnvironmentFailure
from purerl.envs.hosts import Host, open_host
from purerl.envs.observations import calls_from_json, to_json
from purerl.envs.protocol import EndReason
from purerl.envs.remote import VARIABLE
from purerl.envs.settings import EnvironmentSettings
from purerl.errors import ConfigError, PurerlError
from purerl.system.access_tokens import given_token, is_loopback, write_loopback_token
from purerl.system.nesting import read_json

__all__ = ["Server", "serve"]

_LOG = logging.getLogger(__name__)
_MAX_BODY = 2**28  # bytes
_SOCKET_TIMEOUT = 3600.0  # seconds until a connection without a request is closed
_FIRST_TIMEOUT = 60.0  # the same, before the first request with the token

_Response = tuple[int, Mapping[str, Any] | None]
_EpisodeCall = Callable[[Episode], Coroutine[Any, Any, Any]]


def serve(factory: str, *, host: str = "127.0.0.1", port: int, max_idle: float = 3600.0, **settings: Any) -> None:
    """Serve the environment `factory`, ``module:Class`` or ``file.py:function``, until this process is interrupted.

    `host` is the address that it listens on; "0.0.0.0" for all networks, which needs a token. `settings` are those of
    `EnvironmentSettings` that concern where the code runs: kwargs, timeout, run_in, num_workers, max_memory,
    has_states, images, players.

    Raises: ConfigError if a setting is wrong, if there is no such factory, or if the token is missing or not private;
    OSError if the port is not free.
    """
    with Server(EnvironmentSettings(factory=factory, **settings), (host, port), max_idle=max_idle) as server:
        token = f"the token in {server.token_file}" if server.token_file else f"the token of {VARIABLE}"
        sys.stderr.write(f"serving {factory} on http://{server.address[0]}:{server.address[1]}, with {token}\n")
        with suppress(KeyboardInterrupt):
            server.wait()


class Server:
    """A server in threads of this process; it ends after the block, with all episodes. See `serve`.

    address     the host and port that it listens on; port 0 in the argument means any free one
    token_file  the file with the token, if the server has made one
    """

    def __init__(self, settings: EnvironmentSettings, address: tuple[str, int], *, max_idle: float = 3600.0):
        from purerl.envs.check import check_environment_settings

        check_environment_settings(settings)
        token = given_token(VARIABLE)
        self.token_file: Path | None = None
        if token is None and not is_loopback(address[0]):
            need = "a token, without which everybody who can reach the port could run episodes"
            do = f"export {VARIABLE}=..., or {VARIABLE}_FILE with the name of a private file; or serve on 127.0.0.1"
            raise ConfigError(f"host {address[0]!r}", got="no token", need=need, do=do)
        service = self._service = _Service(settings, max_idle)

        class Handler(_Handler):
            respond = service.respond

        self._http = ThreadingHTTPServer(address, Handler)
        self._http.daemon_threads = True
        self.address = self._http.server_address[0], self._http.server_address[1]
        if token is None:
            token, self.token_file = write_loopback_token(self.address[1])
        Handler.authorization = f"Bearer {token}".encode()
        self._thread = threading.Thread(target=self._http.serve_forever, name="purerl server", daemon=True)

    def __enter__(self) -> Self:
        self._service.start()
        self._thread.start()
        return self

    def wait(self) -> None:
        """Wait until the process is interrupted."""
        self._thread.join()

    def __exit__(self, *error: object) -> None:
        if self.token_file is not None:
            self.token_file.unlink(missing_ok=True)
        self._http.shutdown()
        self._http.server_close()
        self._service.close()


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, and lets `respond` answer it."""

    protocol_version = "HTTP/1.1"
    timeout = _FIRST_TIMEOUT
    wbufsize = -1  # an answer is one packet
    disable_nagle_algorithm = True

    respond: Callable[[str, str, Any], _Response]
    authorization: bytes

    def handle_any(self) -> None:
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(errors="replace"), self.authorization):
            self.close_connection = True  # the body has not been read
            remedy = f"see {VARIABLE} in docs/how-to/environments.md"
            return self._send(401, {"error": f"the token is missing or wrong; {remedy}"})
        self.connection.settimeout(_SOCKET_TIMEOUT)
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self.close_connection = True
            return self._send(400, {"error": f"Content-Length is {length!r}; need at most {_MAX_BODY}"})
        data = self.rfile.read(int(length))
        try:
            body = read_json(data or b"{}")
        except ValueError as error:
            return self._send(400, {"error": f"the body is not JSON: {error}"})
        if not isinstance(body, dict):
            return self._send(400, {"error": "the body is not an object"})
        return self._send(*self.respond(self.command, self.path, body))

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 -- the names that http.server expects

    def _send(self, status: int, body: Mapping[str, Any] | None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if body is not None:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOG.debug(format, *arguments)


class _Served:
    """An episode on the server, and its last answer. `turn` is -1 for reset."""

    def __init__(self) -> None:
        self.episode: Episode | None = None
        self.turn = -1
        self.answer: asyncio.Task[_Response] | None = None
        self.last_used = time.monotonic()


class _Service:
    """Answers requests in an event loop of its own."""

    def __init__(self, settings: EnvironmentSettings, max_idle: float):
        self._name, self._max_idle = settings.factory or "", max_idle
        self._settings = settings
        self._episodes: dict[str, _Served] = {}
        self._host: Host = open_host(settings)

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="purerl service", daemon=True)
        self._thread.start()
        self._closing_idle = asyncio.run_coroutine_threadsafe(self._close_idle(), self._loop)

    def close(self) -> None:
        self._closing_idle.cancel()
        asyncio.run_coroutine_threadsafe(self._host.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def respond(self, method: str, path: str, body: Mapping[str, Any]) -> _Response:
        return asyncio.run_coroutine_threadsafe(self._respond(method, path, body), self._loop).result()

    async def _respond(self, method: str, path: str, body: Mapping[str, Any]) -> _Response:
        try:
            return await self._answer_to(method, path.strip("/").split("/"), body)
        except (KeyError, ValueError, TypeError) as error:
            return 400, {"error": f"{type(error).__name__}: {error}"}

    async def _answer_to(self, method: str, path: Sequence[str], body: Mapping[str, Any]) -> _Response:
        match method, *path:
            case "GET", "":
                return 200, {"environment": self._name, "episodes": len(self._episodes)}
            case "POST", "episodes":
                return await self._start(body)
            case "POST", "episodes", name, "step" | "end" as method_name:
                return await self._advance(name, int(body["turn"]), _CALLS[method_name](body))
            case "DELETE", "episodes", name:
                await self._close(name)
                return 204, None
        return 404, {"error": f"no such path: {method} /{'/'.join(path)}"}

    async def _start(self, body: Mapping[str, Any]) -> _Response:
        name, example, seed = str(body["episode"]), dict(body["example"]), int(body["seed"])
        if name not in self._episodes:
            served = self._episodes[name] = _Served()
            served.answer = asyncio.create_task(self._answer(served, 201, self._reset(served, example, seed)))
        served = self._episodes[name]
        if served.turn != -1 or served.answer is None:
            return 409, {"error": f"the episode {name} has started"}
        return await asyncio.shield(served.answer)

    async def _reset(self, served: _Served, example: Mapping[str, Any], seed: int) -> Any:
        served.episode = await self._host.open()
        return await served.episode.reset(example, seed)

    async def _advance(self, name: str, turn: int, call: _EpisodeCall) -> _Response:
        """The answer of `call`, which is made if `turn` is the next one."""
        served = self._episodes.get(name)
        if served is None or served.answer is None:
            return 404, {"error": f"no such episode: {name}"}
        if turn == served.turn + 1 and served.answer.done() and served.episode is not None:
            served.turn = turn
            served.answer = asyncio.create_task(self._answer(served, 200, call(served.episode)))
        if turn != served.turn:
            return 409, {"error": f"turn {turn} of {name}, whose last turn was {served.turn}"}
        return await asyncio.shield(served.answer)

    async def _answer(self, served: _Served, status: int, observing: Coroutine[Any, Any, Any]) -> _Response:
        try:
            observation = await observing
        except EnvironmentFailure as error:
            return 422, {"failure": attrs.asdict(error.failure)}
        except PurerlError as error:
            return 500, {"error": str(error)}
        finally:
            served.last_used = time.monotonic()
        tools = served.episode.tools if served.episode else None
        return status, {"observation": None if observation is None else to_json(observation), "tools": tools}

    async def _close(self, name: str) -> None:
        served = self._episodes.pop(name, None)
        if served is not None and served.answer is not None:
            await asyncio.wait({served.answer})  # it has a deadline
            if served.episode is not None:
                await served.episode.close()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(60.0, self._max_idle / 4))
            now = time.monotonic()
            for name, served in list(self._episodes.items()):
                if now - served.last_used > self._max_idle and served.answer is not None and served.answer.done():
                    await self._close(name)


def _step(body: Mapping[str, Any]) -> _EpisodeCall:
    text, calls = str(body["text"]), calls_from_json(body["calls"])
    return lambda episode: episode.step(text, calls)


def _end(body: Mapping[str, Any]) -> _EpisodeCall:
    reason, text = body["reason"], str(body["text"])
    if reason not in get_args(EndReason):
        raise ValueError(f"reason is {reason!r}; need one of {', '.join(get_args(EndReason))}")
    return lambda episode: episode.end(reason, text)


_CALLS: Mapping[str, Callable[[Mapping[str, Any]], _EpisodeCall]] = {"step": _step, "end": _end}
