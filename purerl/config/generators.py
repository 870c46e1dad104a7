"""Checks of the settings of generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.settings import Model, in_section

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig

__all__ = ["check_actors", "check_adapter_rank", "check_generator", "sampled_model"]


def check_generator(settings: object, key: str = "generator") -> None:
    """Raise ConfigError for the settings of a generator, at `key`, that its own `check` refuses, if it has one."""
    check_settings = getattr(find("generator", kind_of(settings)), "check", None)
    if check_settings is not None:
        with in_section(key, type(settings)):
            check_settings(settings)


def check_adapter_rank(settings: object, rank: int | None) -> None:
    """Raise ConfigError for a generator that cannot load the adapter of `rank` that is trained; None: there is none.

    A generator that can tell has a function `check_adapter_rank` in its module.
    """
    check = getattr(find("generator", kind_of(settings)), "check_adapter_rank", None)
    if check is not None:
        with in_section("generator", type(settings)):
            check(settings, rank)


def check_actors(config: RunConfig) -> None:
    """Refuse several actors of a generator that uses servers which run already: each would send them weights."""
    actors = config.placement.generators
    urls = getattr(getattr(config.generator, "server", None), "urls", ())
    if urls and actors is not None and actors.count > 1:
        need = "one process, which sends the weights to all servers of generator.server.urls"
        do = "set placement.generators.count to 1: it uses all of them"
        raise ConfigError("placement.generators.count", got=actors.count, need=need, do=do)


def sampled_model(config: RunConfig) -> Model:
    """The model of `config` as the generator loads it, unless its own settings name a dtype: as the trainer computes.

    A trainer that computes in another dtype than that of the weights has a function `compute_dtype` in its module.
    """
    compute_dtype = getattr(find("trainer", kind_of(config.trainer)), "compute_dtype", None)
    dtype = compute_dtype(config.trainer) if compute_dtype else None
    return evolve(config.model, dtype=dtype) if dtype else config.model
