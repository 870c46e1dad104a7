"""Servers that ranks share: the first rank starts them, watches them, and sends them the weights of all ranks.

Servers that purerl starts are shared by the ranks of a host, so that the host has one copy of the weights. Servers that
run already are shared by all ranks. Every rank sends its own requests to them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from purerl.backends.serving.api import EngineApi
from purerl.backends.serving.devices import devices_of_servers
from purerl.backends.serving.generator import ServedGenerator
from purerl.backends.serving.instances import GivenInstance, Instance, RemoteInstance, ServerLink
from purerl.backends.serving.lease import Owner, new_owner
from purerl.backends.serving.model import ServedModel
from purerl.backends.serving.settings import ServerSettings
from purerl.backends.serving.started import StartedInstance
from purerl.images import ImageStore
from purerl.protocols import Capabilities, Completion, Request, Weights
from purerl.ranks import MessageExchange, Ranks, current_ranks, store_of_ranks, this_host
from purerl.system.event_loop import EventLoop
from purerl.system.private_files import kept_folder

__all__ = ["SharedGenerator", "check_given", "open_servers"]

_RUN = "{run}"  # still in a path if there is no run
_NUMBERS = itertools.count()  # of generators, which all ranks open in the same order


def open_servers(
    api: EngineApi, settings: ServerSettings, capabilities: Capabilities, model: ServedModel, *, connections: int
) -> ServedGenerator | SharedGenerator:
    """A generator with servers that have the interface `api`. Collective; waits until all servers are ready.

    connections  requests that a server gets from this rank at the same time; others wait here

    Raises: EngineError if a server does not start, does not load weights as it should, or is used by another run; none
    is left then.
    """
    ranks, store = _sharing_ranks(settings)
    own = _owner(settings)
    owner = Owner(*ranks.on_first(lambda: [*own], "the owner of the servers")) if settings.urls else own
    links = [ServerLink(store, number) if store is not None else None for number in range(settings.number)]
    remote: list[Instance] = [RemoteInstance(api, settings, link, connections=connections) for link in links if link]

    def connect(instances: Sequence[Instance]) -> ServedGenerator:
        return ServedGenerator(api, settings, capabilities, model, instances)

    def connect_to_given() -> ServedGenerator:
        return connect(_given(api, settings, owner, connections, takes_lease=ranks.is_first))

    def start() -> ServedGenerator:
        if not settings.urls:
            return connect(_started(api, settings, links, connections))
        generator = connect_to_given()
        generator.load_own_weights()
        return generator

    if ranks.size == 1:
        return start()
    local: list[ServedGenerator] = []
    ranks.on_first(lambda: local.append(start()), "the start of servers")
    if not ranks.is_first:
        local.append(connect_to_given() if settings.urls else connect(remote))
    return SharedGenerator(local[0], ranks)


def check_given(api: EngineApi, settings: ServerSettings) -> None:
    """Raise EngineError if a server in `settings.urls` that answers now cannot be used, or another run uses it."""
    loop, owner = EventLoop(), _owner(settings)
    given = _given(api, settings, owner, 1, takes_lease=False)

    async def look() -> None:
        for instance in given:
            await instance.look()

    try:
        asyncio.run_coroutine_threadsafe(look(), loop.asyncio).result()
    finally:
        loop.close([instance.close for instance in given])


def _given(
    api: EngineApi, settings: ServerSettings, owner: Owner, connections: int, *, takes_lease: bool
) -> list[GivenInstance]:
    rest: dict[str, Any] = {"connections": connections, "takes_lease": takes_lease}
    return [GivenInstance(api, settings, owner, url=url, **rest) for url in settings.urls]


def _owner(settings: ServerSettings) -> Owner:
    """The owner of leases, for this run: `settings.logs` is in its directory, where nothing is written for `urls`."""
    return new_owner(None if _RUN in settings.logs else Path(settings.logs).parent)


def _sharing_ranks(settings: ServerSettings) -> tuple[Ranks, Any]:
    """The ranks that share servers with this one, and a store for what they say about servers; None for one rank."""
    ranks = current_ranks()
    if ranks.size == 1:
        return ranks, None
    hosts = ranks.gather("" if settings.urls else this_host(), "the hosts of the ranks")
    own = [rank for rank, host in enumerate(hosts) if host == hosts[ranks.rank]]
    name = f"servers/{next(_NUMBERS)}/{own[0]}"
    index, timeout = own.index(ranks.rank), settings.longest_update
    exchange = MessageExchange(store_of_ranks(f"{name}/messages"), index, len(own), timeout)
    return Ranks(index, len(own), exchange=exchange), store_of_ranks(f"{name}/links")


def _started(
    api: EngineApi, settings: ServerSettings, links: Sequence[ServerLink | None], connections: int
) -> list[Instance]:
    logs = kept_folder("purerl-servers-") if _RUN in settings.logs else Path(settings.logs)
    return [
        StartedInstance(
            api,
            settings,
            devices=own,
            log=logs / f"{api.name}-{number}.log",
            connections=connections,
            link=links[number],
        )
        for number, own in enumerate(devices_of_servers(settings))
    ]


class SharedGenerator:
    """The `local` generator of each of `ranks`. The first rank has started the servers.

    `load_weights` and `sleep` are collective: every rank calls them.
    """

    def __init__(self, local: ServedGenerator, ranks: Ranks) -> None:
        self.local, self._ranks, self.capabilities = local, ranks, local.capabilities
        if ranks.is_first:
            local.announce()

    def use_images(self, images: ImageStore) -> None:
        self.local.use_images(images)

    def submit(self, requests: Sequence[Request]) -> None:
        self.local.submit(requests)

    def collect(self, timeout: float | None = None) -> list[Completion]:
        return self.local.collect(timeout)

    def cancel(self, keys: Sequence[str]) -> None:
        self.local.cancel(keys)

    @property
    def _checked(self) -> Sequence[int]:
        """The servers that this rank checks: each is checked by a rank, and each rank checks one."""
        number = len(self.local.servers)
        return range(number)[self._ranks.rank % number :: self._ranks.size]

    def copies(self) -> list[str]:
        return [self.local.servers[number].name for number in self._checked]

    def submit_to(self, copy: int, requests: Sequence[Request]) -> None:
        self.local.submit_to(self._checked[copy], requests)

    def load_weights(self, weights: Weights, *, version: int) -> None:
        self.local.check(weights)
        if not self.local.servers[0].api.keeps_requests(is_adapter=weights.adapter is not None):
            self._ranks.on_all(self.local.interrupt, "the requests of all ranks")
        adapters = self._ranks.on_all(partial(self._load, weights, version), "new weights of the servers")
        self.local.resume(adapters[0])

    def _load(self, weights: Weights, version: int) -> str | None:
        """Let the servers load `weights`, on the first rank; on the others, take part in gathering them."""
        if self._ranks.is_first:
            self.local.load_weights(weights, version=version)
            return self.local.servers[0].adapter
        for _ in weights:
            pass
        return None

    def sleep(self) -> None:
        self._ranks.on_all(self.local.interrupt, "the requests of all ranks")
        self._ranks.on_first(self.local.sleep, "the sleep of the servers")

    def close(self) -> None:
        self.local.close()
