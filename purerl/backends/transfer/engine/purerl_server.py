"""The program of an engine's server: each request needs a token, and what the server opens is private.

    python -m purerl_server MODULE ARGUMENTS

runs an engine as ``python -m MODULE ARGUMENTS`` would. Its HTTP server is uvicorn, with one process or several. The
token is in the environment variable PURERL_SERVER_TOKEN; without it nothing starts. Processes of the engine inherit the
variable, because they receive weights with it. One run at a time may change the weights: see `purerl_lease`.

It imports nothing but the standard library and packages that every engine has.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import json
import os
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

if __package__:  # in purerl
    from purerl.backends.transfer.engine import purerl_model
    from purerl.backends.transfer.engine.purerl_lease import HEADER, LOCKED, PATH, Lease, shared_lease
else:  # in an engine, which finds the files of this directory
    import purerl_model  # pyright: ignore[reportMissingImports]
    from purerl_lease import HEADER, LOCKED, PATH, Lease, shared_lease  # pyright: ignore[reportMissingImports]

__all__ = ["OWN_TOKEN", "TOKEN", "Guard", "protect", "run"]

TOKEN = "PURERL_SERVER_TOKEN"  # noqa: S105 - the name of a variable
"""The environment variable with the token."""

OWN_TOKEN = "Purerl-Token"  # noqa: S105 - the name of a header
"""The header with the token if Authorization has a key, of a proxy or of the engine itself."""

_LOCK = ".purerl-lock"  # in a temporary folder of `purerl.system.private_files`
_NO_TOKEN = {"error": "the server needs the header Authorization: Bearer TOKEN"}
_MAX_BODY = 2**16  # bytes
_REFUSED = 1008  # the code of a websocket that violates a policy; before the handshake it is the status 403

Application = Callable[[Mapping[str, Any], Any, Callable[[Mapping[str, Any]], Awaitable[None]]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


class Guard:
    """The ASGI application `app` for clients with the `token`: others get nothing from it.

    They send ``Authorization: Bearer TOKEN``, or, if that has another key, ``Purerl-Token: TOKEN``. With a `lease`, the
    run that has it is the only one that changes anything.
    """

    def __init__(self, app: Application, token: str, lease: Lease | None = None) -> None:
        self._app, self._token, self._lease = app, token.encode(), lease

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        kind, headers = scope["type"], scope.get("headers", ())
        if kind == "lifespan":
            await self._app(scope, receive, send)
        elif not self._has_token(headers):
            await _refuse(kind, send, 401, _NO_TOKEN)
        elif self._lease is None:
            await self._app(scope, receive, send)
        elif kind == "http" and scope["path"] == PATH:
            await _answer(send, *self._lease.answer(scope["method"], _value(headers, HEADER), await _body(receive)))
        elif kind == "http" and scope["path"] == purerl_model.PATH:
            await _answer(send, 200, await asyncio.to_thread(purerl_model.describe_model))
        else:
            await self._admit(self._lease, _value(headers, HEADER), scope, receive, send)

    async def _admit(self, lease: Lease, id: str | None, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Let the engine answer if `lease` admits the request, and the answer too: other weights may be loaded then."""
        is_refused = False

        async def send_if_admitted(message: Mapping[str, Any]) -> None:
            nonlocal is_refused
            if message["type"] == "http.response.start" and id is not None and not lease.admits(id, scope["path"]):
                is_refused = True
                await _refuse("http", send, LOCKED, lease.describe(lease.holder()))
            elif not is_refused:
                await send(message)

        if lease.admits(id, scope["path"]):
            await self._app(scope, receive, send_if_admitted)
        else:
            await _refuse(scope["type"], send, LOCKED, lease.describe(lease.holder()))

    def _has_token(self, headers: Headers) -> bool:
        own = _value(headers, OWN_TOKEN)
        scheme, _, token = (_value(headers, "Authorization") or "").partition(" ") if own is None else ("", "", own)
        is_bearer = own is not None or scheme.lower() == "bearer"
        return hmac.compare_digest(token.strip().encode(), self._token) and is_bearer


def _value(headers: Headers, name: str) -> str | None:
    """The value of the header `name`; None without it, and "" if it is there more than once."""
    values = [value for key, value in headers if key.lower() == name.lower().encode()]
    return None if not values else values[0].decode("latin-1") if len(values) == 1 else ""


async def _body(receive: Any) -> bytes:
    """The body that a client has sent; not more than any request for the lease has."""
    body, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY:
            break
    return body


async def _refuse(kind: str, send: Any, status: int, answer: Mapping[str, Any]) -> None:
    if kind == "http":
        await _answer(send, status, answer)
    elif kind == "websocket":
        await send({"type": "websocket.close", "code": _REFUSED})
    else:
        raise PermissionError(f"a connection of kind {kind!r} has no token")


async def _answer(send: Any, status: int, answer: Mapping[str, Any]) -> None:
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def protect() -> None:
    """Guard each HTTP server that uvicorn runs in this process and each group of gloo; let stores listen on loopback.

    The main module of a program calls this outside of ``if __name__ == "__main__"``: processes that multiprocessing
    starts import it.
    """
    token = os.environ.get(TOKEN, "")
    if not re.fullmatch("[!-~]{16,}", token):
        sys.exit(f"purerl_server: {TOKEN} must contain a token, of at least 16 characters; nothing was started")
    os.umask(os.umask(0o077) | 0o022)
    _guard_uvicorn(token, shared_lease())
    _bind_stores()
    _guard_groups(token)


def _guard_uvicorn(token: str, lease: Lease) -> None:
    import uvicorn

    load = uvicorn.Config.load

    def load_and_guard(self: uvicorn.Config) -> None:
        load(self)
        self.loaded_app = Guard(self.loaded_app, token, lease)

    uvicorn.Config.load = load_and_guard


def _bind_stores() -> None:
    """Let a `TCPStore` listen on the loopback address that it is for. torch's own listens on all addresses."""
    from torch import distributed

    original: Any = distributed.TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch documents it

    class LoopbackStore(original):
        def __init__(self, host_name: str, port: int = 0, *args: Any, **kwargs: Any) -> None:
            is_master = kwargs.get("is_master", args[1] if len(args) > 1 else False)
            if is_master and _is_loopback(host_name) and kwargs.get("master_listen_fd") is None:
                listener = _listener(host_name, port)
                port, kwargs["master_listen_fd"] = listener.getsockname()[1], listener.detach()
            super().__init__(host_name, port, *args, **kwargs)

    _replace_in_torch("TCPStore", original, LoopbackStore)


def _guard_groups(token: str) -> None:
    """Let the members of each group of gloo prove that they have the `token`: engines send pickles over some."""
    from torch import distributed

    purerl_messages = import_module("purerl_messages")  # its directory is on the path of the engine
    original: Any = distributed.distributed_c10d.ProcessGroupGloo

    class GuardedGroup(original):
        CHECKS_MEMBERS = True

        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            super().__init__(store, rank, size, *args, **kwargs)
            if size > 1:
                purerl_messages.check_members(self, store, rank, size, token, store.timeout)

    _replace_in_torch("ProcessGroupGloo", original, GuardedGroup)


def _replace_in_torch(name: str, original: type, replacement: type) -> None:
    """Replace the class `name` in each module of torch that has it."""
    for module in [module for path, module in sys.modules.items() if path.startswith("torch.")]:
        if vars(module).get(name) is original:
            setattr(module, name, replacement)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _listener(host: str, port: int) -> Any:
    import socket

    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=2048)


def run(module: str, arguments: Sequence[str]) -> NoReturn:
    """Run `module` as a program with `arguments`; the program that calls this remains the main module."""
    folder = Path(tempfile.gettempdir())
    is_owner = _lock(folder)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    finally:
        if is_owner:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit()


_locks: list[Any] = []  # files, which stay open as long as this process lives


def _lock(folder: Path) -> bool:
    """Whether `folder` is a temporary folder of purerl that no process has; it belongs to this process then.

    ``purerl serve`` has made it and become this process.
    """
    try:
        _locks.append((folder / _LOCK).open("r+b"))
        fcntl.flock(_locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


if __name__ in ("__main__", "__mp_main__"):
    protect()
if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
