"""Servers that run already: one process of one generator of a run loads its model into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purerl.config.schema import Role
from purerl.errors import ConfigError
from purerl.placement.settings import Placement

__all__ = ["check_servers"]


def check_servers(generator: Any, judges: Mapping[str, Role], placement: Placement) -> None:
    """Refuse servers that several generators would use, of policy and judges, or several actors of one."""
    generators = {"generator": generator}
    generators |= {f"roles.{name}.generator": role.generator for name, role in judges.items()}
    users: dict[str, str] = {}
    for owner, settings in generators.items():
        key, urls = f"{owner}.server.urls", _urls_of(settings)
        if urls:
            _check_actors(placement, key)
        for url in urls:
            if users.setdefault(url, key) != key:
                need = f"a server of its own; {users[url]} has this one, and each would load its model into it"
                raise ConfigError(key, got=url, need=need, do="name another server, or leave urls out")


def _urls_of(settings: Any) -> list[str]:
    """The addresses of the servers of a generator with these `settings`, in one form."""
    return [url.rstrip("/") for url in getattr(getattr(settings, "server", None), "urls", ())]


def _check_actors(placement: Placement, key: str) -> None:
    """Refuse several actors of a generator that uses servers which run already: each would send them weights."""
    actors = placement.generators
    if actors is not None and actors.count > 1:
        need = f"one process, which sends the weights to all servers of {key}"
        do = "set placement.generators.count to 1: it uses all of them"
        raise ConfigError("placement.generators.count", got=actors.count, need=need, do=do)
