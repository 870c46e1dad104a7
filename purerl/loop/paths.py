"""Paths in a configuration that are in the run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve, fields, has

from purerl.config.paths import RUN
from purerl.config.schema import RunConfig
from purerl.loop.base_models import map_models

__all__ = ["resolve_paths"]


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


def _map_strings(settings: Any, function: Callable[[str], str]) -> Any:
    """`settings`, an attrs class, with every string changed by `function`, also those in sections."""
    values = {each.name: getattr(settings, each.name) for each in fields(type(settings)) if each.init}
    changed = {
        name: function(value) if isinstance(value, str) else _map_strings(value, function)
        for name, value in values.items()
        if isinstance(value, str) or has(type(value))
    }
    return evolve(settings, **changed)
