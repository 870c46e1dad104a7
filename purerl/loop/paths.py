"""Paths in a configuration that are in the run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve, fields, has

from purerl.config.paths import RUN
from purerl.config.reward_roles import REWARDS, reward_roles
from purerl.config.schema import Role, RunConfig
from purerl.opening.base_models import map_models

__all__ = ["resolve_judges", "resolve_paths"]


def resolve_paths(config: RunConfig, root: Path) -> RunConfig:
    """`config` with ``{run}`` in its paths replaced by the run directory."""

    def at(path: str) -> str:
        return path.replace(RUN, str(root))

    return evolve(
        map_models(config, lambda model: evolve(model, path=at(model.path))),
        data=evolve(config.data, files=tuple(map(at, config.data.files))),
        evaluate=config.evaluate and evolve(config.evaluate, data={k: at(v) for k, v in config.evaluate.data.items()}),
        validation=config.validation and evolve(config.validation, data=tuple(map(at, config.validation.data))),
        generator=config.generator and _map_strings(config.generator, at),
    )


def resolve_judges(config: RunConfig, root: Path) -> RunConfig:
    """`config` with ``{run}`` in the generators of judges replaced: then servers of judges are those of this run.

    An evaluation leaves them as they are, so that it does not take them from a run that is in progress. The logs of the
    servers of a judge are in a folder with its name.
    """
    roles = {name: _with_own_servers(name, role, root) for name, role in reward_roles(config).items()}
    return evolve(config, roles={**config.roles, REWARDS: roles}) if roles else config


def _with_own_servers(name: str, role: Role, root: Path) -> Role:
    if role.generator is None:
        return role
    generator = _map_strings(role.generator, lambda path: path.replace(RUN, str(root)))
    server = getattr(generator, "server", None)
    logs = server and evolve(server, logs=f"{server.logs}/{name}")
    return evolve(role, generator=evolve(generator, server=logs) if logs else generator)


def _map_strings(settings: Any, function: Callable[[str], str]) -> Any:
    """`settings`, an attrs class, with every string changed by `function`, also those in sections."""
    values = {each.name: getattr(settings, each.name) for each in fields(type(settings)) if each.init}
    changed = {
        name: function(value) if isinstance(value, str) else _map_strings(value, function)
        for name, value in values.items()
        if isinstance(value, str) or has(type(value))
    }
    return evolve(settings, **changed)
