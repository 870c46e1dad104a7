"""Checks of the settings of generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from purerl.backends.serving.settings import ServerSettings
from purerl.errors import ConfigError
from purerl.plugins import find, kind_of
from purerl.settings import Model, in_section, no_effect
from purerl.system.devices.kinds import BETWEEN_DEVICES

if TYPE_CHECKING:
    from purerl.config.schema import RunConfig

__all__ = [
    "check_adapter_rank",
    "check_generator",
    "check_mismatch_growth",
    "check_updates_in_flight",
    "is_narrow",
    "sampled_model",
]


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


def sampled_model(config: RunConfig) -> Model:
    """The model of `config` as the generator loads it, unless its own settings name a dtype: as the trainer computes.

    A trainer that computes in another dtype than that of the weights has a function `compute_dtype` in its module.
    """
    compute_dtype = getattr(find("trainer", kind_of(config.trainer)), "compute_dtype", None)
    dtype = compute_dtype(config.trainer) if compute_dtype else None
    return evolve(config.model, dtype=dtype) if dtype else config.model


def check_updates_in_flight(config: RunConfig) -> None:
    """Refuse servers that sleep while they have requests, and settings of updates of weights that have no effect."""
    server, rollout = getattr(config.generator, "server", None), config.rollout
    if not isinstance(server, ServerSettings) or rollout is None:
        return
    in_flight = {name: value for name in ("max_staleness", "num_extra_groups") if (value := getattr(rollout, name))}
    for name, value in in_flight.items() if server.sleep_level else ():
        got, need = f"{value}, and generator.server.sleep_level={server.sleep_level}", "0, if servers sleep"
        do = "set generator.server.sleep_level=0, and give the servers devices of their own"
        raise ConfigError(f"rollout.{name}", got=got, need=need, do=do)
    if server.stale_cache and not in_flight:
        need = "requests that run while weights change: rollout.max_staleness or rollout.num_extra_groups above 0"
        raise no_effect("generator.server.stale_cache", True, need)  # noqa: FBT003 - the value
    if config.placement.kind == "ray" and server.weight_transfer in BETWEEN_DEVICES:
        need = 'placement.kind = "local": weights reach the actors of a generator in the memory of their hosts'
        raise no_effect("generator.server.weight_transfer", server.weight_transfer, need)


def is_narrow(config: RunConfig) -> bool:
    """Whether the trainer or the generator computes in 16 bits, as far as settings say."""
    generator = config.generator
    dtypes = {sampled_model(config).dtype, getattr(generator, "dtype", None)}
    dtypes.add(getattr(getattr(generator, "server", None), "dtype", None))
    return not dtypes <= {"float32", "float64", None}


def check_mismatch_growth(config: RunConfig) -> None:
    """Refuse `generator.max_mismatch_growth` where log-probabilities are of other weights than the trainer's."""
    growth, rollout = getattr(config.generator, "max_mismatch_growth", None), config.rollout
    if growth is not None and (rollout is None or rollout.max_staleness or rollout.recorded):
        need = "completions that are sampled with the weights of their step: rollout.max_staleness = 0"
        raise no_effect("generator.max_mismatch_growth", growth, need)
