"""Files and models in the run directory, whose paths a configuration has before the place of the run is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, fields, has

from purerl.config.requirements import REWARDS
from purerl.config.schema import Role, RunConfig
from purerl.settings import Model

__all__ = ["RUN", "is_created_by_run", "map_models", "resolve_judges", "resolve_paths"]

RUN = "{run}"
"""The run directory, in a path of a configuration."""


def is_created_by_run(path: str) -> bool:
    """Whether the file or model at `path` is in the run directory, so that it may not exist before the run.

    >>> is_created_by_run("{run}/prepared/model"), is_created_by_run("gpt2")
    (True, False)
    """
    return RUN in path


def map_models(config: RunConfig, function: Callable[[Model], Model]) -> RunConfig:
    """`config` with the result of `function` in place of each model that is set, its initial run excepted."""

    def in_role(role: Role | Mapping[str, Role]) -> Any:
        if not isinstance(role, Role):
            return {name: in_role(part) for name, part in role.items()}
        return evolve(role, model=role.model and function(role.model))

    roles = {name: in_role(role) for name, role in config.roles.items()}
    return evolve(config, model=function(config.model), roles=roles)


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
    scorers = config.roles.get(REWARDS)
    if not isinstance(scorers, Mapping):
        return config
    roles = {name: _with_own_servers(name, role, root) for name, role in scorers.items()}
    return evolve(config, roles={**config.roles, REWARDS: roles})


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
