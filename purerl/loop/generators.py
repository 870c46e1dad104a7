"""The generators of a run: their settings, and opening them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, fields_dict, frozen

from purerl.backends.plugin import generator_plugin
from purerl.config.generators import check_generator, sampled_model
from purerl.config.overrides import apply
from purerl.config.reward_roles import judge_roles
from purerl.config.schema import RunConfig
from purerl.errors import ConfigError
from purerl.placement.engines import LOCAL_ENGINES, Engines, build_engine
from purerl.plugins import kind_of
from purerl.protocols import Generator
from purerl.seeds import derive_seed
from purerl.settings import Model, setting

__all__ = ["change_generator", "check_running", "open_generator", "open_sampler"]


def open_generator(
    settings: Any, model: Model, seed: int, engines: Engines = LOCAL_ENGINES, name: str = "generator"
) -> Generator:
    """The engine that samples completions of `model`, which is one of `engines`.

    `seed` is that of the run, and `name` the engine's.
    """
    seed = derive_seed(seed, name) % 2**31
    return engines.generator(name, partial(build_engine, "generator", settings, model=model, seed=seed))


def open_sampler(config: RunConfig, engines: Engines = LOCAL_ENGINES) -> Generator:
    """The generator of a run of `config`, which has one."""
    return open_generator(config.generator, sampled_model(config), config.seed, engines)


@frozen
class _Sampler:
    """A section with an engine that samples, for settings that name its kind."""

    generator: Any = setting("the engine that samples completions", plugin="generator")


def check_running(config: RunConfig) -> None:
    """Raise EngineError if a generator of `config`, also of a judge, cannot use servers that run already.

    It is called before models are loaded.
    """
    judges = [(role.generator, role.model) for role in judge_roles(config).values()]
    for settings, model in [(config.generator, sampled_model(config)), *judges]:
        if settings is not None:
            generator_plugin(settings).check_running(settings, model=model)


def change_generator(generator: Any, changes: Mapping[str, Any], settings: Sequence[str] = ()) -> Any:
    """The Config of an engine, changed by `settings`, as KEY=VALUE, and then by `changes`.

    Raises: ConfigError for a setting that it does not have, and if the engine is not installed.
    """
    if settings:
        generator = apply(_Sampler(generator), [f"generator.{text}" for text in settings]).generator
        check_generator(generator)
    for name, value in changes.items():
        if name not in fields_dict(type(generator)):
            need = f"a generator with this setting; {kind_of(generator)} has none"
            raise ConfigError(f"generator.{name} has no effect", got=repr(value), need=need, do="leave it out")
    return evolve(generator, **changes)
