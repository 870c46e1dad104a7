"""The lease that a run has of a server which runs already: nobody else changes its weights meanwhile.

The server keeps it, see `purerl.backends.transfer.engine.purerl_lease`. It ends a minute after the last request of the
run, by the clock of the server, so a run that was killed keeps nobody waiting for longer.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from purerl.backends.serving.http import Http, LockedError, RefusedError, UnreachableError
from purerl.backends.transfer.engine.purerl_lease import PATH, SECONDS
from purerl.errors import EngineError
from purerl.ranks import this_host

__all__ = ["Owner", "ServerLease", "check_free", "new_owner"]

_LOG = logging.getLogger(__name__)
_TIMEOUT = 20.0  # seconds
_BETWEEN = SECONDS / 4  # seconds between two renewals
_PROGRAM = "purerl_server of this version of purerl (purerl serve starts it)"


class Owner(NamedTuple):
    """The owner of a lease.

    id    of the lease: all ranks of a run use the same
    run   the same for each start of the run in a directory, which only one process at a time works on; None without one
    name  of the run, for the messages of others
    """

    id: str
    run: str | None
    name: str


def new_owner(directory: Path | None) -> Owner:
    """The owner of a new lease, for the run in `directory`, or for this process if it has no run directory."""
    process = f"process {os.getpid()} on {socket.gethostname()}"
    if directory is None:
        return Owner(uuid4().hex, None, f"an evaluation or a program, {process}")
    path = directory.absolute()
    run = hashlib.sha256(f"{this_host()} {path.resolve()}".encode()).hexdigest()
    return Owner(uuid4().hex, run, f"{path}, {process}")


class ServerLease:
    """The lease of the server `name` at `http` for `owner`, once it is taken, until `give_back`.

    Without `must_have` a server that has no leases is used with a warning.
    """

    def __init__(self, http: Http, name: str, owner: Owner, *, must_have: bool) -> None:
        self._http, self._name, self._owner, self._must_have = http, name, owner, must_have
        self._renewal: asyncio.Task[None] | None = None

    async def take(self) -> None:
        """Take the lease, and renew it from now on. Raises EngineError if another run has it."""
        try:
            has_leases = await self._post()
        except LockedError as error:
            raise _used(self._name, error.holder) from error
        if has_leases:
            self._http.lease = self._owner.id
            self._renewal = asyncio.ensure_future(self._renew())
        elif self._must_have:
            got = "no leases: another run could send it weights at the same time"
            do = f"start it by {_PROGRAM}, or set server.weight_transfer=directory"
            raise EngineError(f"{self._name} cannot be used", got=got, need=_PROGRAM, do=do)
        else:
            text = "%s has no leases: if another run uses it, each samples from the weights of the other. It needs %s"
            _LOG.warning(text, self._name, _PROGRAM)

    async def _post(self) -> bool:
        """Take or renew the lease; False if the server has none. Raises LockedError if another run has it."""
        try:
            answer = await self._http.post(PATH, self._owner._asdict(), timeout=_TIMEOUT)
        except RefusedError:
            return False
        return isinstance(answer, Mapping) and "seconds" in answer

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_BETWEEN)
            try:
                await self._post()
            except UnreachableError as error:
                _LOG.warning("the lease of %s was not renewed: %s", self._name, error)
            except LockedError as error:  # the next request of the run is refused, and ends it
                _LOG.warning("%s", error)
                return

    async def give_back(self) -> None:
        """Let others use the server."""
        if self._renewal is None:
            return
        self._renewal.cancel()
        self._renewal = None
        try:
            await self._http.delete(PATH, timeout=_TIMEOUT)
        except (RefusedError, UnreachableError, LockedError) as error:
            _LOG.warning("the lease of %s ends in %g seconds: it was not given back: %s", self._name, SECONDS, error)


async def check_free(http: Http, name: str, owner: Owner) -> None:
    """Raise EngineError if another run than that of `owner` has the lease of the server `name`."""
    try:
        holder: Any = await http.get(PATH, timeout=_TIMEOUT)
    except (RefusedError, UnreachableError):
        return
    if isinstance(holder, Mapping) and "name" in holder and (owner.run is None or holder["run"] != owner.run):
        raise _used(name, holder)


def _used(name: str, holder: Mapping[str, Any]) -> EngineError:
    idle, remaining = (math.ceil(holder.get(key, SECONDS)) for key in ("idle", "expires_in"))
    got = f"{holder.get('name', 'a run')}, whose last request was {idle} seconds ago"
    need = "a server that no other run uses, because each would sample from the weights of the other"
    do = f"wait for its end, or name another server; if it has died, the server is free in {remaining} seconds"
    return EngineError(f"{name} is used by another run", got=got, need=need, do=do)
