"""Opening the generators of a run."""

from __future__ import annotations

from functools import partial
from typing import Any

from purerl.config.generators import sampled_model
from purerl.config.requirements import Requirements
from purerl.config.schema import RunConfig
from purerl.placement.engines import LOCAL_ENGINES, Engines, build_engine
from purerl.plugins import find, kind_of
from purerl.protocols import Generator
from purerl.seeds import derive_seed
from purerl.settings import Model

__all__ = ["check_running", "open_generator", "open_sampler"]


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
    return open_generator(config.generator, sampled_model(config.model, config.trainer), config.seed, engines)


def check_running(config: RunConfig, needs: Requirements) -> None:
    """Raise EngineError if a generator of `config`, also of a judge, cannot use servers that run already.

    It is called before models are loaded.
    """
    judges = [(role.generator, role.model) for role in needs.judges.values()]
    for settings, model in [(config.generator, sampled_model(config.model, config.trainer)), *judges]:
        check = settings and getattr(find("generator", kind_of(settings)), "check_running", None)
        if check:
            check(settings, model=model)
